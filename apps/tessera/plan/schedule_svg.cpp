#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "tessera/plan/schedule_files.h"

namespace tessera::app {
namespace {

constexpr const char* kInk = "#222222";
constexpr const char* kFaint = "#6f7580";
constexpr const char* kIdle = "#eceef1";
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 78;
constexpr double kRow = 30;
constexpr double kGap = 4;
constexpr double kMaxWidth = 1600;
constexpr double kMinWidth = 560;  // of the axis: title and legend need it
/// Below this width of a cell its number is left out.
constexpr double kReadable = 11;

struct Colour {
  int red = 0;
  int green = 0;
  int blue = 0;
};

Colour colour_of(char letter) {
  switch (letter) {
    case 'F':
      return {42, 120, 214};
    case 'B':
      return {58, 154, 91};
    default:
      return {217, 138, 31};
  }
}

/// Later chunks of a rank are paler.
double paleness(int chunk, int num_chunks) { return num_chunks > 1 ? 0.55 * chunk / (num_chunks - 1) : 0; }

std::string hex(const Colour& colour, double paleness) {
  const auto mixed = [&](int part) { return static_cast<int>(std::lround(part + (255 - part) * paleness)); };
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "#%02x%02x%02x", mixed(colour.red), mixed(colour.green), mixed(colour.blue));
  return text.data();
}

std::string number(double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string rect(double x, double y, double width, double height, const std::string& fill) {
  return "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) + "\" height=\"" +
         number(height) + "\" fill=\"" + fill + "\"/>\n";
}

struct TextLook {
  double size = 12;
  const char* anchor = "start";
  std::string colour = kInk;
  bool is_bold = false;
};

std::string text_at(double x, double y, const std::string& words, const TextLook& look) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" font-size=\"" + number_text(look.size) +
         "\" text-anchor=\"" + look.anchor + "\" fill=\"" + look.colour + "\"" +
         (look.is_bold ? " font-weight=\"bold\"" : "") + ">" + words + "</text>\n";
}

/// Pixels for a unit of time: wide enough for the numbers, within the limits of the picture.
double scale_of(const PlannedSchedule& planned) {
  double shortest = planned.times.makespan;
  for (const DrawnCell& cell : drawn_cells(planned, 0)) shortest = std::min(shortest, cell.end - cell.start);
  const double width = std::clamp(24 * planned.times.makespan / shortest, kMinWidth, kMaxWidth);
  return width / planned.times.makespan;
}

std::string cell_shape(const PlannedSchedule& planned, const DrawnCell& cell, double scale, double y) {
  const double pale = paleness(cell.chunk, planned.num_chunks());
  const double x = kLeft + cell.start * scale;
  const double width = (cell.end - cell.start) * scale;
  // The gap on the right tells cells of one kind apart.
  const double gap = std::min(1.0, width / 4);
  std::string shape = rect(x, y, width - gap, kRow, hex(colour_of(cell.letter), pale));
  if (width < kReadable) return shape;
  // All numbers have the size at which the longest fits.
  const auto num_digits = static_cast<double>(std::to_string(planned.shape.num_micro_batches - 1).size());
  const double size = std::min(12.0, std::floor(1.5 * (width - 2) / num_digits));
  const bool is_light = pale > 0.2 || cell.letter == 'W';
  return shape + text_at(x + (width - gap) / 2, y + kRow / 2 + 0.36 * size, std::to_string(cell.micro_batch),
                         {.size = size, .anchor = "middle", .colour = is_light ? kInk : "#ffffff"});
}

std::string row(const PlannedSchedule& planned, std::size_t rank, double scale) {
  const double y = kTop + static_cast<double>(rank) * (kRow + kGap);
  std::string shapes = text_at(kLeft - 10, y + kRow / 2 + 4, "rank " + std::to_string(rank), {.anchor = "end"});
  shapes += rect(kLeft, y, planned.times.makespan * scale, kRow, kIdle);
  for (const DrawnCell& cell : drawn_cells(planned, rank)) {
    shapes += cell_shape(planned, cell, scale, y);
  }
  return shapes;
}

std::string legend(const PlannedSchedule& planned) {
  double x = kLeft;
  std::string shapes;
  const auto entry = [&](const std::string& fill, const std::string& words) {
    shapes += rect(x, 47, 14, 14, fill) + text_at(x + 20, 58, words, {});
    x += 38 + 6.4 * static_cast<double>(words.size());
  };
  const bool is_halved = has_halved_backwards(planned);
  entry(hex(colour_of('F'), 0), "forward");
  entry(hex(colour_of('B'), 0), is_halved ? "backward of inputs" : "backward");
  if (is_halved) entry(hex(colour_of('W'), 0), "backward of weights");
  entry(kIdle, "idle");
  if (planned.num_chunks() > 1) shapes += text_at(x, 58, "paler: later chunks", {.colour = kFaint});
  return shapes;
}

/// 1, 2 or 5 times a power of ten, such that there are some ten ticks.
double tick_step(double makespan) {
  const double power = std::pow(10, std::floor(std::log10(makespan / 10)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (makespan / (factor * power) <= 12) return factor * power;
  }
  return 10 * power;
}

std::string axis(const PlannedSchedule& planned, double scale, double y) {
  std::string shapes;
  const double step = tick_step(planned.times.makespan);
  for (int i = 0; i * step <= planned.times.makespan; ++i) {
    const double x = kLeft + i * step * scale;
    shapes += rect(x, y, 1, 5, kFaint);
    shapes += text_at(x, y + 18, number_text(i * step), {.size = 11, .anchor = "middle", .colour = kFaint});
  }
  const std::string words = "time; makespan " + number_text(planned.times.makespan) + ", idle " +
                            share_text(planned.times.idle_share()) + " at most";
  return shapes + text_at(kLeft, y + 38, words, {.colour = kFaint});
}

}  // namespace

std::string to_svg(const PlannedSchedule& planned) {
  const double scale = scale_of(planned);
  const double bottom = kTop + static_cast<double>(planned.times.ranks.size()) * (kRow + kGap);
  const std::string width = number_text(std::ceil(kLeft + planned.times.makespan * scale + kRight));
  const std::string height = number_text(bottom + 50);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + width + " " + height + "\" width=\"" +
                    width + "\" height=\"" + height + "\" font-family=\"Helvetica, Arial, sans-serif\">\n";
  svg += "<rect width=\"" + width + "\" height=\"" + height + "\" fill=\"#ffffff\"/>\n";
  svg += text_at(kLeft, 28, title_of(planned), {.size = 15, .is_bold = true});
  svg += legend(planned);
  for (std::size_t rank = 0; rank < planned.times.ranks.size(); ++rank) svg += row(planned, rank, scale);
  return svg + axis(planned, scale, bottom) + "</svg>\n";
}

}  // namespace tessera::app
