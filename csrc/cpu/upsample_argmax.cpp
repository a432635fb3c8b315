// The class of largest value at every pixel of maps given by lists of source rows and columns: arguments, bands, tiles.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <algorithm>
#include <vector>
#include "class_map.h"
#include "floats.h"

namespace mesa {
namespace {

using torch::stable::Tensor;
using ScalarType = torch::headeronly::ScalarType;

constexpr int64_t kBandRows = 32;     // output rows that share what is loaded of the map
constexpr int64_t kTileColumns = 64;  // output columns whose sources fit the first-level cache

// Sources of the positions along one axis: `count[i]` of them for position i, `stride` apart.
struct Taps {
  const int32_t* index;
  const float* weight;
  int stride;
  const int* count;
};

#define MESA_KERNEL "upsample_argmax_kernel.h"
#include "each_instruction_set.h"

#if defined(MESA_HAS_X86_LEVELS)
#define MESA_CHOOSE(function) \
  (instruction_set() == 4 ? &v4::function : instruction_set() == 3 ? &v3::function : &plain::function)
#else
#define MESA_CHOOSE(function) (&plain::function)
#endif

// Positions [start, stop) of an axis in terms of the sources that they use: sources[j] in the map, index[i * stride + t] in
// sources.
struct Part {
  std::vector<int32_t> sources;
  void collect(const Taps& taps, int64_t start, int64_t stop, std::vector<int32_t>& place, int32_t* index) {
    sources.clear();
    for (int64_t i = start; i < stop; ++i)
      for (int t = 0; t < taps.count[i]; ++t) sources.push_back(taps.index[i * taps.stride + t]);
    std::sort(sources.begin(), sources.end());
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    for (size_t j = 0; j < sources.size(); ++j) place[sources[j]] = (int32_t)j;
    for (int64_t i = start; i < stop; ++i)
      for (int t = 0; t < taps.count[i]; ++t) index[i * taps.stride + t] = place[taps.index[i * taps.stride + t]];
  }
};

struct Map {
  Tensor row_index, row_weight, column_index, column_weight;
  const void* values;
  MapStrides stride;
  int64_t height, width;
  Taps rows, columns;
  std::vector<int> row_count, column_count;
  std::vector<Part> tiles;
  std::vector<int32_t> tile_index;  // columns.index, each tile's in terms of its own sources
  void (*load)(const Map&, int64_t classes, int64_t lanes, int64_t y, float* to);
};

template <class T>
void load_row(const Map& m, int64_t classes, int64_t lanes, int64_t y, float* to) {
  load_class_row(static_cast<const T*>(m.values) + y * m.stride.row, m.stride, classes, m.width, lanes, to);
}

// The rows of a map that a band of output rows uses.
struct BandSource {
  Part part;
  std::vector<int32_t> place, index;
  Floats values;
  int64_t room = 0;
  void load(const Map& m, int64_t top, int64_t bottom, int64_t classes, int64_t lanes) {
    const int64_t row_size = (m.width + 1) * lanes;
    place.resize(m.height);
    index.resize(bottom * m.rows.stride);
    part.collect(m.rows, top, bottom, place, index.data());
    const int64_t size = (int64_t)part.sources.size() * row_size;
    if (size > room) {
      values.reset();
      values = make_floats(room = size);
    }
    for (size_t j = 0; j < part.sources.size(); ++j)
      m.load(m, classes, lanes, part.sources[j], values.get() + j * row_size);
  }
  const float* row(const Map& m, int64_t y, int t, int64_t lanes) const {
    return values.get() + index[y * m.rows.stride + t] * (m.width + 1) * lanes;
  }
};

Taps make_taps(const Tensor& index, const Tensor& weight, int64_t limit, std::vector<int>& count, const char* name) {
  STD_TORCH_CHECK(index.dim() == 2 && weight.dim() == 2 && index.scalar_type() == ScalarType::Int &&
                      weight.scalar_type() == ScalarType::Float && index.size(0) == weight.size(0) &&
                      index.size(1) == weight.size(1) && index.size(1) > 0,
                  "upsample_argmax: ", name, ": int32 index and float32 weight [n, T] of one shape expected");
  Taps taps;
  taps.index = static_cast<const int32_t*>(index.const_data_ptr());
  taps.weight = static_cast<const float*>(weight.const_data_ptr());
  taps.stride = (int)index.size(1);
  count.resize(index.size(0));
  for (int64_t i = 0; i < index.size(0); ++i) {
    int n = taps.stride;
    while (n > 1 && taps.weight[i * taps.stride + n - 1] == 0.0f) --n;
    count[i] = n;
    for (int t = 0; t < n; ++t) {
      const int32_t at = taps.index[i * taps.stride + t];
      STD_TORCH_CHECK(at >= 0 && at < limit, "upsample_argmax: ", name, "_index of position ", i, " is ", at,
                      "; expected 0 to ", limit - 1);
    }
  }
  taps.count = count.data();
  return taps;
}

Tensor upsample_argmax(const std::vector<Tensor>& logits, const std::vector<Tensor>& row_index,
                       const std::vector<Tensor>& row_weight, const std::vector<Tensor>& column_index,
                       const std::vector<Tensor>& column_weight, bool softmax) {
  const size_t n = logits.size();
  STD_TORCH_CHECK(n > 0 && row_index.size() == n && row_weight.size() == n && column_index.size() == n &&
                      column_weight.size() == n,
                  "upsample_argmax: one of each list for every map of logits expected, and at least one map");
  const int64_t classes = logits[0].size(0), lanes = class_lanes(classes);
  const int64_t rows = row_index[0].size(0), columns = column_index[0].size(0);
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns, bands = (rows + kBandRows - 1) / kBandRows;
  std::vector<Map> maps(n);
  int64_t tile_sources = 1;
  for (size_t i = 0; i < n; ++i) {
    Map& m = maps[i];
    STD_TORCH_CHECK(logits[i].dim() == 3 && logits[i].size(0) == classes && logits[i].numel() > 0 &&
                        row_index[i].size(0) == rows && column_index[i].size(0) == columns,
                    "upsample_argmax: logits [C, h, w] and lists of one length in all maps expected");
    switch (logits[i].scalar_type()) {
      case ScalarType::Float: m.load = &load_row<float>; break;
      case ScalarType::Half: m.load = &load_row<torch::headeronly::Half>; break;
      case ScalarType::BFloat16: m.load = &load_row<torch::headeronly::BFloat16>; break;
      default: STD_TORCH_CHECK(false, "upsample_argmax: logits: float32, float16 or bfloat16 expected");
    }
    m.values = logits[i].const_data_ptr();
    m.stride = {logits[i].stride(0), logits[i].stride(1), logits[i].stride(2)};
    m.height = logits[i].size(1);
    m.width = logits[i].size(2);
    m.row_index = torch::stable::contiguous(row_index[i]);
    m.row_weight = torch::stable::contiguous(row_weight[i]);
    m.column_index = torch::stable::contiguous(column_index[i]);
    m.column_weight = torch::stable::contiguous(column_weight[i]);
    m.rows = make_taps(m.row_index, m.row_weight, m.height, m.row_count, "row");
    m.columns = make_taps(m.column_index, m.column_weight, m.width, m.column_count, "column");
    m.tiles.resize(tiles);
    m.tile_index.resize(columns * m.columns.stride);
    std::vector<int32_t> place(m.width);
    for (int64_t t = 0; t < tiles; ++t) {
      m.tiles[t].collect(m.columns, t * kTileColumns, std::min((t + 1) * kTileColumns, columns), place,
                         m.tile_index.data());
      tile_sources = std::max(tile_sources, (int64_t)m.tiles[t].sources.size());
    }
    m.columns.index = m.tile_index.data();
  }
  Tensor labels = torch::stable::new_empty(logits[0], {rows, columns}, ScalarType::Long);
  int64_t* out = static_cast<int64_t*>(labels.mutable_data_ptr());
  const auto mix_rows = MESA_CHOOSE(mix_rows);
  const auto label_values = MESA_CHOOSE(label_values);
  const auto add_map = MESA_CHOOSE(add_map);
  const auto label_sums = MESA_CHOOSE(label_sums);
  const bool direct = n == 1;  // one map's softmax has its largest class where the map has it

  torch::stable::parallel_for(0, bands, 1, [&](int64_t begin, int64_t end) {
    const Floats row = make_floats(tile_sources * lanes), power = make_floats(lanes);
    const Floats sums = make_floats(direct ? 1 : kBandRows * kTileColumns * lanes);
    std::vector<BandSource> sources(n);
    std::vector<const float*> taps;
    for (int64_t band = begin; band < end; ++band) {
      const int64_t top = band * kBandRows, bottom = std::min(top + kBandRows, rows);
      for (size_t i = 0; i < n; ++i) sources[i].load(maps[i], top, bottom, classes, lanes);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t start = tile * kTileColumns, stop = std::min(start + kTileColumns, columns);
        if (!direct) std::fill_n(sums.get(), (bottom - top) * (stop - start) * lanes, 0.0f);
        for (size_t i = 0; i < n; ++i) {
          const Map& m = maps[i];
          const std::vector<int32_t>& used = m.tiles[tile].sources;
          taps.resize(m.rows.stride);
          for (int64_t y = top; y < bottom; ++y) {
            for (int t = 0; t < m.rows.count[y]; ++t) taps[t] = sources[i].row(m, y, t, lanes);
            mix_rows(taps.data(), m.rows.weight + y * m.rows.stride, m.rows.count[y], used.data(), used.size(), lanes,
                     row.get());
            if (direct)
              label_values(row.get(), m.columns, start, stop, lanes, out + y * columns);
            else
              add_map(row.get(), m.columns, start, stop, lanes, softmax, power.get(),
                      sums.get() + (y - top) * (stop - start) * lanes);
          }
        }
        if (direct) continue;
        for (int64_t y = top; y < bottom; ++y)
          label_sums(sums.get() + (y - top) * (stop - start) * lanes, start, stop, lanes, out + y * columns);
      }
    }
  });
  return labels;
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) { m.impl("upsample_argmax", TORCH_BOX(&mesa::upsample_argmax)); }
