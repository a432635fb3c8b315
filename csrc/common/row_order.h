#pragma once
// The order in which LayerNorm adds up the values of a row: one for every device, element type and layout in memory, so
// that mean, 1/sigma, x^ and its codes are the same bits everywhere.
//   - A row of more than kLongestPiece channels is cut into pieces; their sums are added first to last.
//   - Channel c of a piece is added to accumulator c % width, first to last. Where there is no channel, 0 is added.
//   - Eight neighbouring accumulators: ((a0 + a2) + (a1 + a3)) + ((a4 + a6) + (a5 + a7)).
//   - These width/8 sums: the second half onto the first, until one is left.
// On a GPU a piece belongs to a team of lanes; each holds the accumulators of the 4 or 8 neighbouring channels that it
// loads at once. On a CPU accumulators are lanes of vectors.
#include <stdint.h>
namespace mesa {

constexpr int kLongestPiece = 512, kWidest = 64, kNarrowest = 8, kMostEach = kLongestPiece / kWidest;

struct RowOrder {
  int64_t pieces, length;  // channels a piece; the last one may have fewer
  int width;               // a power of two
};
// The width that leaves fewest accumulators idle at the end of a piece, with at most kMostEach channels each.
inline RowOrder row_order(int64_t channels) {
  RowOrder order{1, channels, kNarrowest};
  if (channels > kLongestPiece) {
    const int64_t pieces = (channels + kLongestPiece - 1) / kLongestPiece;
    order.length = ((channels + pieces - 1) / pieces + 7) / 8 * 8;
    order.pieces = (channels + order.length - 1) / order.length;
  }
  int64_t least = INT64_MAX;
  for (int width = kWidest; width >= kNarrowest; width /= 2) {
    const int64_t each = (order.length + width - 1) / width;
    if (each * width < least && each <= kMostEach) {
      least = each * width;
      order.width = width;
    }
  }
  return order;
}

}  // namespace mesa
