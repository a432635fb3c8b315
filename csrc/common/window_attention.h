#pragma once
// Where the tokens of a shifted window lie in the unpadded map. The map [height, width] is padded at the right and the
// bottom to multiples of the window, rolled by -shift in both directions and cut into windows, row by row.
#include <stdint.h>
#include "host_device.h"
namespace mesa {

constexpr float kRegionMask = -100.0f;  // added to the logit of a pair that only the roll brought together

struct WindowMap {
  int height, width, window, shift;
  int rows, columns;  // windows along each side
};

MESA_HD WindowMap window_map(int height, int width, int window, int shift) {
  WindowMap m;
  m.height = height;
  m.width = width;
  m.window = window;
  m.shift = shift;
  m.rows = (height + window - 1) / window;
  m.columns = (width + window - 1) / window;
  return m;
}

// Window w of the map: the how-manieth it is down and across.
struct WindowAt {
  int row, column;
};
MESA_HD WindowAt window_at(const WindowMap& m, int w) {
  WindowAt at;
  at.row = (unsigned)w / (unsigned)m.columns;
  at.column = w - at.row * m.columns;
  return at;
}

// Row y of the map at row `row` of the window, and column x at its column `column`; -1 where the map is padded.
MESA_HD int window_y(const WindowMap& m, WindowAt at, int row) {
  int y = at.row * m.window + row + m.shift;
  y -= y >= m.rows * m.window ? m.rows * m.window : 0;
  return y < m.height ? y : -1;
}
MESA_HD int window_x(const WindowMap& m, WindowAt at, int column) {
  int x = at.column * m.window + column + m.shift;
  x -= x >= m.columns * m.window ? m.columns * m.window : 0;
  return x < m.width ? x : -1;
}

// Token y * width + x at (row, column) of the window, or -1 where the map is padded.
MESA_HD int window_token(const WindowMap& m, WindowAt at, int row, int column) {
  const int y = window_y(m, at, row), x = window_x(m, at, column);
  return y >= 0 && x >= 0 ? y * m.width + x : -1;
}

// Only windows of the last row and the last column hold tokens of more than one region.
MESA_HD bool window_has_regions(const WindowMap& m, WindowAt at) {
  return m.shift > 0 && (at.row == m.rows - 1 || at.column == m.columns - 1);
}

// Region of (row, column) of the window, 0..3: pairs of different regions are masked. Telling apart what lies in one
// window is enough: in the last row of windows, what the roll carried from the top is another region than the rest.
MESA_HD int window_region(const WindowMap& m, WindowAt at, int row, int column) {
  const int low = at.row == m.rows - 1 && row >= m.window - m.shift;
  const int right = at.column == m.columns - 1 && column >= m.window - m.shift;
  return 2 * low + right;
}

}  // namespace mesa
