#pragma once
// Runs the unmodified kernels of csrc/cuda on the CPU: one fiber a CUDA thread, one block at a time.
//
// It gives a kernel threadIdx and friends, static and dynamic shared memory, __syncthreads and its variants, warp
// shuffles, votes and reductions, atomics, and the 16-bit float types (no CUDA header is needed). What kernels write in
// PTX has a second form on top of emu::bring and emu::copy_later (csrc/cuda/mma.cuh). It reports
//   - barriers that only some threads reach, or that threads reach at different places;
//   - warp operations whose lanes never come, disagree on the mask, or read a lane outside it;
//   - shared memory: two threads on one element with no barrier between them (one of them writing), elements read
//     before the block wrote them, indices outside the array (arrays declared with MESA_SHARED, MESA_DYNAMIC_SHARED);
//   - asynchronous copies that nobody waits for; read before, their elements are not written yet;
//   - vector accesses to addresses that are not aligned; launches on another stream than the tensor's, or beyond the
//     limits of CUDA or of MESA_EMU_MAX_GRID.
// Environment, read at each launch: MESA_EMU_SEED (0: threads and blocks in order; else a random order, new after every
// switch), MESA_EMU_MAX_GRID (largest grid dimension a launcher may ask for).
// Not modelled: blocks that run at the same time, memory ordering, how tensor cores round their sums, bank conflicts.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define MESA_EMU 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#include "../../csrc/cuda/launch.h"

// ---- types of the CUDA headers -------------------------------------------------------------------------------------
struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline uint32_t emu_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
inline float emu_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
struct __nv_bfloat16 { uint16_t raw; };
struct __half { uint16_t raw; };
inline float __bfloat162float(__nv_bfloat16 v) { return emu_float((uint32_t)v.raw << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  const uint32_t u = emu_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {(uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}
inline float __half2float(__half v) {
  const uint32_t sign = (uint32_t)(v.raw & 0x8000u) << 16, exponent = (v.raw >> 10) & 31, fraction = v.raw & 1023;
  if (exponent == 31) return emu_float(sign | 0x7f800000u | fraction << 13);
  if (exponent) return emu_float(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = (float)fraction * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -small : small;
}
inline __half __float2half_rn(float f) {
  const uint32_t u = emu_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {0x7fff};
  if (a >= 0x477ff000u) return {(uint16_t)(sign | 0x7c00u)};  // rounds to infinity
  if (a < 0x38800000u) {                                      // subnormal: multiples of 2^-24, nearest even
    const float scaled = emu_float(a) * 16777216.0f;
    return {(uint16_t)(sign | (uint32_t)nearbyintf(scaled))};
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1);
  return {(uint16_t)(sign | ((rounded - 0x38000000u) >> 13))};
}

namespace emu {

// ---- fibers --------------------------------------------------------------------------------------------------------
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t u;
#endif
  const void* bottom = nullptr;  // of its stack, for the address sanitiser
  size_t size = 0;
  void* fake = nullptr;
};
#if defined(__x86_64__)
extern "C" void mesa_emu_swap(void** from, void* to);
// Callee-saved registers go on the old stack, the stack pointers change places.
asm(R"(
.text
.weak mesa_emu_swap
.type mesa_emu_swap,@function
mesa_emu_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mesa_emu_swap,.-mesa_emu_swap
)");
#endif
inline void swap_raw(Context& from, Context& to) {
#if defined(__x86_64__)
  mesa_emu_swap(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.u, &to.u);
#endif
}
inline void swap(Context& from, Context& to, bool leaving_for_good = false) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(leaving_for_good ? nullptr : &from.fake, to.bottom, to.size);
#endif
  (void)leaving_for_good;
  swap_raw(from, to);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}
inline void prepare(Context& c, char* stack, size_t size, void (*entry)()) {
  c.bottom = stack;
  c.size = size;
  c.fake = nullptr;
#if defined(__x86_64__)
  void** top = (void**)(((uintptr_t)stack + size) & ~(uintptr_t)15);
  *--top = nullptr;  // leaves rsp 8 beyond a multiple of 16 where the function begins, as a call does
  *--top = (void*)entry;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  c.stack_pointer = top;
#else
  getcontext(&c.u);
  c.u.uc_stack.ss_sp = stack;
  c.u.uc_stack.ss_size = size;
  c.u.uc_link = nullptr;
  makecontext(&c.u, entry, 0);
#endif
}

// ---- the machine ---------------------------------------------------------------------------------------------------
enum class State : uint8_t { ready, at_barrier, at_warp, done };
struct Fiber {
  Context context;
  State state;
  uint3 thread;
  int index;
  uint32_t mask;  // of the warp operation it waits in
  int site;       // source line of the barrier it waits at
  int operation;  // kind of the warp operation it waits in
  uint64_t value;     // that it brought to it
  uint64_t seen[32];  // and those of all its lanes
  alignas(16) unsigned char brought[2][64];  // larger values, of this warp operation and of the last one
  int turn;
  std::vector<std::function<void()>> copies;  // begun, not waited for
};
struct Warp {
  uint32_t syncs = 0;  // full-warp __syncwarp so far
};
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStack = 256 * 1024;
#else
constexpr size_t kStack = 64 * 1024;
#endif
constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxShared = 227 * 1024;

struct Access {  // who touched an element, and between which barriers
  uint64_t epoch = 0;
  uint32_t syncs = 0;
  int thread = -1;
};
struct Touched {
  Access writer, reader, same_warp_reader, other_warp_reader, atomic;
  uint64_t written_in = 0;  // serial number of the block that wrote it last
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<int> order;
  std::vector<char> dynamic;
  std::vector<Touched> dynamic_touched;
  char* stacks = nullptr;
  Context scheduler;
  Fiber* current = nullptr;
  const std::function<void()>* body = nullptr;
  const char* kernel = "";
  uint3 block{};
  dim3 grid, threads;
  int count = 0;
  int any = 0, all = 1, number = 0;              // predicates collected by the barrier being waited for
  int any_out = 0, all_out = 1, number_out = 0;  // and of the one just passed
  uint64_t random = 0, epoch = 0, block_serial = 0;
  std::string error;
  int64_t launches = 0, switches = 0;
};
inline Machine& machine() {
  static Machine m;
  return m;
}

// Records the first fault and leaves the kernel; the launch then reports it.
[[noreturn]] inline void fail_now(const std::string& what);
inline void fail(const std::string& what) {
  Machine& m = machine();
  if (!m.error.empty()) return;
  m.error = std::string("emulator: ") + m.kernel + ": " + what;
  if (m.current) {
    char where[96];
    snprintf(where, sizeof where, " (block %u,%u,%u thread %u,%u,%u)", m.block.x, m.block.y, m.block.z,
             m.current->thread.x, m.current->thread.y, m.current->thread.z);
    m.error += where;
  }
}
inline void yield_to_scheduler() {
  Machine& m = machine();
  ++m.switches;
  swap(m.current->context, m.scheduler);
}
inline void fail_now(const std::string& what) {
  fail(what);
  for (;;) yield_to_scheduler();
}
// Not inlined: fiber_main never returns, and the sanitiser's marks on its frame would stay on the stack.
__attribute__((noinline)) inline void check_no_copies() {
  if (!machine().current->copies.empty()) fail_now("asynchronous copies: the thread ends without waiting for them");
}
inline void fiber_main() {
  Machine& m = machine();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler.bottom, &m.scheduler.size);
#endif
  (*m.body)();
  check_no_copies();
  m.current->state = State::done;
  swap(m.current->context, m.scheduler, true);
  abort();
}

inline void barrier(int site, int predicate = 0) {
  Machine& m = machine();
  m.any |= predicate != 0;
  m.all &= predicate != 0;
  m.number += predicate != 0;
  m.current->state = State::at_barrier;
  m.current->site = site;
  yield_to_scheduler();
}

enum Operation { op_sync, op_shuffle, op_vote, op_mma, op_load_matrix, op_load_matrix_transposed };
// Every lane of the mask brings a value; returns when all have, with their values in current->seen.
inline const uint64_t* meet(uint32_t mask, uint64_t value, int operation) {
  Machine& m = machine();
  Fiber& me = *m.current;
  const int lane = me.index & 31, first = me.index & ~31, lanes = std::min(32, m.count - first);
  if (!(mask >> lane & 1)) fail_now("warp operation: the calling lane is not in the mask");
  me.mask = mask;
  me.operation = operation;
  me.value = value;
  me.state = State::at_warp;
  bool all = true;
  for (int l = 0; l < 32; ++l) {
    if (l < lanes && m.fibers[first + l].state == State::at_warp) {
      const Fiber& other = m.fibers[first + l];
      const bool wanted = mask >> l & 1;
      if (wanted != (bool)(other.mask >> lane & 1) || (wanted && other.mask != mask))
        fail_now("warp operation: lanes disagree on the mask");
      if (wanted && other.operation != operation) fail_now("warp operation: lanes wait in different operations");
    } else if (mask >> l & 1) {
      all = false;
    }
  }
  if (!all) {
    yield_to_scheduler();
    return me.seen;
  }
  for (int l = 0; l < lanes; ++l)
    if (mask >> l & 1) me.seen[l] = m.fibers[first + l].value;
  for (int l = 0; l < lanes; ++l) {
    if (!(mask >> l & 1)) continue;
    Fiber& f = m.fibers[first + l];
    if (l != lane) memcpy(f.seen, me.seen, sizeof me.seen);
    f.state = State::ready;
  }
  if (operation == op_sync && mask == (lanes == 32 ? 0xffffffffu : (1u << lanes) - 1)) ++m.warps[first / 32].syncs;
  return me.seen;
}
template <class T>
uint64_t pack(T v) {
  static_assert(sizeof(T) <= 8, "a warp operation moves at most 8 bytes");
  uint64_t u = 0;
  memcpy(&u, &v, sizeof v);
  return u;
}
template <class T>
T unpack(uint64_t u) {
  T v;
  memcpy(&v, &u, sizeof v);
  return v;
}
template <class T>
T shuffle(uint32_t mask, T v, int source, bool inside) {
  const uint64_t* seen = meet(mask, pack(v), op_shuffle);
  if (!inside) return v;
  if (!(mask >> (source & 31) & 1)) fail_now("shuffle: the source lane is not in the mask");
  return unpack<T>(seen[source & 31]);
}
inline uint32_t ballot(uint32_t mask, bool predicate) {
  const uint64_t* seen = meet(mask, predicate, op_vote);
  uint32_t r = 0;
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1) r |= (uint32_t)(seen[l] & 1) << l;
  return r;
}
template <class T, class F>
T reduce(uint32_t mask, T v, F f) {
  const uint64_t* seen = meet(mask, pack(v), op_vote);
  bool first = true;
  T r{};
  for (int l = 0; l < 32; ++l) {
    if (!(mask >> l & 1)) continue;
    const T other = unpack<T>(seen[l]);
    r = first ? other : f(r, other);
    first = false;
  }
  return r;
}

// What each of the 32 lanes brought to an operation of the whole warp.
template <class V>
struct Brought {
  int first, turn;
  const V& operator[](int lane) const { return *(const V*)machine().fibers[first + lane].brought[turn]; }
};
template <class V>
Brought<V> bring(const V& value, int operation) {
  static_assert(sizeof(V) <= 64 && std::is_trivially_copyable<V>::value, "a lane brings at most 64 bytes");
  Fiber& me = *machine().current;
  me.turn ^= 1;  // a lane may reach its next operation while others still read what it brought to this one
  memcpy(me.brought[me.turn], &value, sizeof value);
  meet(0xffffffffu, 0, operation);
  return {me.index & ~31, me.turn};
}

// Asynchronous copies happen as late as they may: when their thread waits for them.
inline void copy_later(std::function<void()> copy) { machine().current->copies.push_back(std::move(copy)); }
inline void wait_for_copies() {
  std::vector<std::function<void()>> copies;
  copies.swap(machine().current->copies);
  for (const auto& copy : copies) copy();
}

// ---- shared memory -------------------------------------------------------------------------------------------------
// Two accesses are ordered when a __syncthreads, or (in one warp) a full __syncwarp, lies between them.
inline bool unordered(const Access& a, int thread) {
  Machine& m = machine();
  if (a.thread < 0 || a.thread == thread || a.epoch != m.epoch) return false;
  return (a.thread >> 5) != (thread >> 5) || a.syncs == m.warps[thread >> 5].syncs;
}
enum class Kind { read, write, atomic };
inline void touch(Touched& t, Kind kind, const char* name, int64_t index) {
  Machine& m = machine();
  if (!m.current) return;
  const int me = m.current->index;
  const Access now{m.epoch, m.warps[me >> 5].syncs, me};
  const char* clash = nullptr;
  if (unordered(t.writer, me) || (kind != Kind::atomic && unordered(t.atomic, me)))
    clash = kind == Kind::read ? "read while another thread writes it" : "written by two threads";
  if (kind != Kind::read &&
      (unordered(t.reader, me) || unordered(t.same_warp_reader, me) || unordered(t.other_warp_reader, me)))
    clash = "written while another thread reads it";
  if (kind == Kind::write) {
    t.writer = now;
    t.written_in = m.block_serial;
  } else {
    if (t.written_in != m.block_serial)
      fail_now(std::string("shared memory: ") + name + "[" + std::to_string(index) + "] read before it is written");
  }
  if (kind == Kind::atomic) t.atomic = now;
  if (kind == Kind::read) {
    if (t.reader.thread != me && t.reader.thread >= 0)
      ((t.reader.thread >> 5) == (me >> 5) ? t.same_warp_reader : t.other_warp_reader) = t.reader;
    t.reader = now;
  }
  if (clash)
    fail_now(std::string("shared memory race: ") + name + "[" + std::to_string(index) + "] " + clash +
             " with no barrier between");
}
template <class T>
struct Address {  // what &element is: good for atomics only
  T* value;
  Touched* touched;
  const char* name;
  int64_t index;
};
template <class T>
struct Reference {  // stands for one element; converts to it
  T* value;
  Touched* touched;
  const char* name;
  int64_t index;
  operator T() const {
    touch(*touched, Kind::read, name, index);
    return *value;
  }
  T operator=(T v) const {
    touch(*touched, Kind::write, name, index);
    return *value = v;
  }
  T operator=(const Reference& other) const { return *this = (T)other; }
  Address<T> operator&() const { return {value, touched, name, index}; }
  T operator+=(T v) const { return *this = (T)*this + v; }
  T operator-=(T v) const { return *this = (T)*this - v; }
  T operator*=(T v) const { return *this = (T)*this * v; }
  T operator|=(T v) const { return *this = (T)*this | v; }
};
template <class T>
struct SharedView {  // what a T* into shared memory is on the device
  T* values;
  Touched* touched;
  int64_t begin, end;  // bounds of the array, counted from values
  const char* name;
  Reference<T> operator[](int64_t i) const {
    if (i < begin || i >= end)
      fail_now(std::string("shared memory: ") + name + "[" + std::to_string(i - begin) + "] is outside an array of " +
               std::to_string(end - begin));
    return {values + i, touched + i, name, i - begin};
  }
  SharedView operator+(int64_t n) const { return {values + n, touched + n, begin - n, end - n, name}; }
  Reference<T> operator*() const { return (*this)[0]; }
};
template <class T, int64_t N>
struct SharedArray {
  alignas(16) T values[N];
  Touched touched[N];
  const char* name;
  explicit SharedArray(const char* n) : name(n) {}
  SharedArray(const SharedArray&) = delete;
  operator SharedView<T>() { return {values, touched, 0, N, name}; }
  Reference<T> operator[](int64_t i) { return SharedView<T>(*this)[i]; }
  SharedView<T> operator+(int64_t n) { return SharedView<T>(*this) + n; }
};
// The dynamic shared memory as elements of T. Elements of different types over the same bytes share no record: carve
// one type a region.
template <class T>
SharedView<T> dynamic_shared(const char* name) {
  Machine& m = machine();
  return {(T*)m.dynamic.data(), m.dynamic_touched.data(), 0, (int64_t)(m.dynamic.size() / sizeof(T)), name};
}

// ---- launching -----------------------------------------------------------------------------------------------------
inline int64_t environment(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoll(text, nullptr, 10) : otherwise;
}
inline int64_t max_grid() { return environment("MESA_EMU_MAX_GRID", 65535); }
inline void shuffle_order(Machine& m, std::vector<int>& order) {
  for (size_t i = order.size(); i > 1; --i) {
    m.random ^= m.random << 13;
    m.random ^= m.random >> 7;
    m.random ^= m.random << 17;
    std::swap(order[i - 1], order[m.random % i]);
  }
}
inline void run_block(Machine& m) {
  ++m.epoch;
  ++m.block_serial;
  m.any = 0, m.all = 1, m.number = 0;
  for (Warp& w : m.warps) w = Warp();
  for (int i = 0; i < m.count; ++i) {
    Fiber& f = m.fibers[i];
    f.index = i;
    f.state = State::ready;
    f.turn = 0;
    f.copies.clear();
    f.thread = uint3{i % m.threads.x, i / m.threads.x % m.threads.y, i / (m.threads.x * m.threads.y)};
    m.order[i] = i;
    prepare(f.context, m.stacks + (size_t)i * kStack, kStack, fiber_main);
  }
  for (;;) {
    bool ran = false;
    if (m.random) shuffle_order(m, m.order);
    for (int i : m.order) {
      if (m.fibers[i].state != State::ready) continue;
      m.current = &m.fibers[i];
      swap(m.scheduler, m.fibers[i].context);
      m.current = nullptr;
      ran = true;
      if (!m.error.empty()) return;
    }
    if (ran) continue;
    int waiting = 0, done = 0, in_warp = 0, site = -1;
    bool apart = false;
    for (const Fiber& f : m.fibers) {
      done += f.state == State::done;
      in_warp += f.state == State::at_warp;
      if (f.state != State::at_barrier) continue;
      ++waiting;
      apart |= site >= 0 && site != f.site;
      site = f.site;
    }
    if (done == m.count) return;
    if (in_warp) return fail("deadlock: lanes wait in a warp operation for lanes that never come");
    if (apart) return fail("barrier divergence: threads wait at different __syncthreads()");
    if (done) return fail("barrier divergence: some threads ended without reaching __syncthreads()");
    m.any_out = m.any, m.all_out = m.all, m.number_out = m.number;
    m.any = 0, m.all = 1, m.number = 0;
    ++m.epoch;
    for (Fiber& f : m.fibers) f.state = State::ready;
  }
}
template <class F>
void launch(const char* kernel, dim3 grid, dim3 threads, size_t shared, const void* stream, F&& call) {
  Machine& m = machine();
  if (!m.error.empty()) return;  // as CUDA does: the error stays until it is asked for
  m.kernel = kernel;
  m.current = nullptr;
  m.grid = grid;
  m.threads = threads;
  m.count = (int)(threads.x * threads.y * threads.z);
  ++m.launches;
  const int64_t limit = max_grid();
  if (stream != mesa::emulated_stream()) return fail("launch: not on the current stream");
  if (m.count < 1 || m.count > kMaxThreads || threads.z > 64) return fail("launch: block size out of bounds");
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > limit || grid.y > limit || grid.z > limit)
    return fail("launch: grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                std::to_string(grid.z) + " blocks exceeds the limit of " + std::to_string(limit));
  if ((int64_t)shared > kMaxShared) return fail("launch: too much dynamic shared memory");
  m.fibers.resize(m.count);
  m.order.resize(m.count);
  m.warps.resize((m.count + 31) / 32);
  m.dynamic.assign(shared, (char)0xcd);
  m.dynamic_touched.assign(shared, Touched());
  if (!m.stacks) {
    m.stacks = (char*)mmap(nullptr, kMaxThreads * kStack, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m.stacks == (char*)MAP_FAILED) abort();
  }
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(m.stacks, kMaxThreads * kStack);
#endif
  m.random = (uint64_t)environment("MESA_EMU_SEED", 0) * 0x9e3779b97f4a7c15ull;
  const std::function<void()> body = call;
  m.body = &body;
  std::vector<int> blocks((size_t)grid.x * grid.y * grid.z);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = (int)i;
  if (m.random) shuffle_order(m, blocks);
  for (int b : blocks) {
    m.block = uint3{b % grid.x, b / grid.x % grid.y, b / (grid.x * grid.y)};
    run_block(m);
    if (!m.error.empty()) return;
  }
}
inline std::string& last_error() {
  static std::string text;
  return text;
}
// As cudaGetLastError: says whether something went wrong since it was last asked.
inline int take_error() {
  Machine& m = machine();
  if (m.error.empty()) return 0;
  last_error() = m.error;
  m.error.clear();
  return 1;
}
template <class T>
void check_aligned(const T* p, size_t bytes) {
  if ((uintptr_t)p % bytes) fail_now("address of a " + std::to_string(bytes) + "-byte access is not aligned");
}
}  // namespace emu

// ---- what a kernel sees --------------------------------------------------------------------------------------------
#define threadIdx (::emu::machine().current->thread)
#define blockIdx (::emu::machine().block)
#define blockDim (::emu::machine().threads)
#define gridDim (::emu::machine().grid)
#define __syncthreads() ::emu::barrier(__LINE__)
#define __syncthreads_or(p) (::emu::barrier(__LINE__, (p)), ::emu::machine().any_out)
#define __syncthreads_and(p) (::emu::barrier(__LINE__, (p)), ::emu::machine().all_out)
#define __syncthreads_count(p) (::emu::barrier(__LINE__, (p)), ::emu::machine().number_out)
inline void __syncwarp(unsigned mask = 0xffffffffu) { ::emu::meet(mask, 0, ::emu::op_sync); }
inline int emu_lane() { return emu::machine().current->index & 31; }
template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  return emu::shuffle(mask, v, (emu_lane() & ~(width - 1)) + (source & (width - 1)), true);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32) {
  const int source = emu_lane() ^ x;
  return emu::shuffle(mask, v, source, source < (emu_lane() & ~(width - 1)) + width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32) {
  const int source = emu_lane() + (int)d;
  return emu::shuffle(mask, v, source, source < (emu_lane() & ~(width - 1)) + width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32) {
  const int source = emu_lane() - (int)d;
  return emu::shuffle(mask, v, source, source >= (emu_lane() & ~(width - 1)));
}
inline unsigned __ballot_sync(unsigned mask, int p) { return emu::ballot(mask, p); }
inline int __any_sync(unsigned mask, int p) { return emu::ballot(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return emu::ballot(mask, p) == mask; }
inline int __reduce_min_sync(unsigned mask, int v) { return emu::reduce(mask, v, [](int a, int b) { return std::min(a, b); }); }
inline int __reduce_max_sync(unsigned mask, int v) { return emu::reduce(mask, v, [](int a, int b) { return std::max(a, b); }); }
inline int __reduce_add_sync(unsigned mask, int v) { return emu::reduce(mask, v, [](int a, int b) { return a + b; }); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) { return emu::reduce(mask, v, [](unsigned a, unsigned b) { return a | b; }); }
template <class T>
T atomicAdd(T* p, T v) { const T old = *p; *p = old + v; return old; }
template <class T>
T atomicMin(T* p, T v) { const T old = *p; *p = std::min(old, v); return old; }
template <class T>
T atomicMax(T* p, T v) { const T old = *p; *p = std::max(old, v); return old; }
#define MESA_EMU_SHARED_ATOMIC(f)                                                \
  template <class T>                                                             \
  T f(emu::Address<T> a, typename std::common_type<T>::type v) {                 \
    emu::touch(*a.touched, emu::Kind::atomic, a.name, a.index);                  \
    return f(a.value, v);                                                        \
  }
MESA_EMU_SHARED_ATOMIC(atomicAdd)
MESA_EMU_SHARED_ATOMIC(atomicMin)
MESA_EMU_SHARED_ATOMIC(atomicMax)
inline float __uint_as_float(unsigned u) { return emu_float(u); }
inline unsigned __float_as_uint(float f) { return emu_bits(f); }
inline int __float_as_int(float f) { return (int)emu_bits(f); }
inline float __int_as_float(int i) { return emu_float((uint32_t)i); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned u) { return __builtin_popcount(u); }
inline int __ffs(int u) { return __builtin_ffs(u); }

typedef void* cudaStream_t;
inline int cudaGetLastError() { return emu::take_error(); }
