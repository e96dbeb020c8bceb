// A schedule on a terminal, as a line for each rank.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "tessera/plan/schedule_text.h"

namespace tessera::app {
namespace {

constexpr std::string_view kPlain = "\033[0m";

std::string_view escape_of(char letter) {
  switch (letter) {
    case 'F':
      return "\033[97;44m";
    case 'B':
      return "\033[30;42m";
    case 'W':
      return "\033[30;43m";
    default:
      return "\033[2m";
  }
}

std::string margin_of(std::size_t rank, std::size_t num_ranks) {
  const std::string number = std::to_string(rank);
  const std::size_t width = std::to_string(num_ranks - 1).size();
  return "rank " + std::string(width - number.size(), ' ') + number + "  ";
}

/// Small for the later ones of a rank's chunks.
char letter_of(const DrawnCell& cell) {
  return cell.chunk > 0 ? static_cast<char>(cell.letter - 'A' + 'a') : cell.letter;
}

/// "F3", "f3" for the second chunk of a rank; of more than two chunks, which letters do not tell apart, "F3.2".
std::string label_of(const DrawnCell& cell, int num_chunks) {
  if (num_chunks <= 2) return letter_of(cell) + std::to_string(cell.micro_batch);
  return cell.letter + std::to_string(cell.micro_batch) + "." + std::to_string(cell.chunk);
}

/// A line of letters, each with the kind that colours it.
class Line {
 public:
  /// Fills up to the column with idle time: dots, and so many spaces at the end.
  void idle_until(std::size_t column, std::size_t num_spaces) {
    if (column < text_.size() + num_spaces) return;
    const std::size_t length = column - text_.size();
    text_ += std::string(length - num_spaces, '.') + std::string(num_spaces, ' ');
    kinds_ += std::string(length, '.');
  }

  /// A label and dashes up to the column, with so many spaces at the end.
  void cell_until(std::size_t column, char kind, const std::string& label, std::size_t num_spaces) {
    if (column < text_.size() + num_spaces) return;
    const std::size_t length = column - text_.size() - num_spaces;
    std::string cell = label.substr(0, length);
    cell += std::string(length - cell.size(), '-') + std::string(num_spaces, ' ');
    text_ += cell;
    // Spaces stay plain, so that cells of one colour do not run together.
    kinds_ += std::string(length, kind) + std::string(num_spaces, '.');
  }

  void letter(char letter, char kind) {
    text_ += letter;
    kinds_ += kind;
  }

  std::string text(bool has_colour) const {
    if (!has_colour) return text_.substr(0, text_.find_last_not_of(' ') + 1);
    std::string result;
    for (std::size_t i = 0; i < text_.size(); ++i) {
      if (i == 0 || kinds_[i] != kinds_[i - 1]) result += std::string(kPlain) + std::string(escape_of(kinds_[i]));
      result += text_[i];
    }
    return result + std::string(kPlain);
  }

 private:
  std::string text_;
  std::string kinds_;
};

/// How a time becomes a column.
struct Scale {
  double columns_a_unit = 0;
  std::size_t num_spaces = 0;  ///< between labels
  bool has_labels = false;

  std::size_t column(double time) const { return static_cast<std::size_t>(std::lround(time * columns_a_unit)); }
};

/// The widest of three that fits: labels with spaces between them, without, or letters alone. Each column of the last
/// is a part of the shortest computation or, if not even that fits, a part of the makespan.
Scale scale_for(const PlannedSchedule& planned, std::size_t num_columns) {
  const auto available = static_cast<double>(num_columns);
  double shortest = planned.times.makespan;
  double label_size = 0;
  for (std::size_t rank = 0; rank < planned.times.ranks.size(); ++rank) {
    for (const DrawnCell& cell : drawn_cells(planned, rank)) {
      shortest = std::min(shortest, cell.end - cell.start);
      label_size = std::max(label_size, static_cast<double>(label_of(cell, planned.num_chunks()).size()));
    }
  }
  const double num_shortest = planned.times.makespan / shortest;
  for (const std::size_t num_spaces : {1, 0}) {
    const double size = label_size + static_cast<double>(num_spaces);
    if (size * num_shortest <= available) return {size / shortest, num_spaces, true};
  }
  const double fitting = std::floor(available / num_shortest);
  return {fitting >= 1 ? fitting / shortest : available / planned.times.makespan, 0, false};
}

Line line_of_labels(const PlannedSchedule& planned, std::size_t rank, const Scale& scale) {
  Line line;
  for (const DrawnCell& cell : drawn_cells(planned, rank)) {
    line.idle_until(scale.column(cell.start), scale.num_spaces);
    line.cell_until(scale.column(cell.end), cell.letter, label_of(cell, planned.num_chunks()), scale.num_spaces);
  }
  line.idle_until(scale.column(planned.times.makespan), scale.num_spaces);
  return line;
}

Line line_of_letters(const PlannedSchedule& planned, std::size_t rank, const Scale& scale) {
  const std::vector<DrawnCell> cells = drawn_cells(planned, rank);
  Line line;
  auto cell = cells.begin();
  for (std::size_t i = 0; i < scale.column(planned.times.makespan); ++i) {
    const double middle = (static_cast<double>(i) + 0.5) / scale.columns_a_unit;
    while (cell != cells.end() && cell->end <= middle) ++cell;
    const bool is_idle = cell == cells.end() || cell->start > middle;
    line.letter(is_idle ? '.' : letter_of(*cell), is_idle ? '.' : cell->letter);
  }
  return line;
}

std::string legend_line(const PlannedSchedule& planned, const Scale& scale) {
  std::string text = has_halved_backwards(planned) ? "F forward, B backward for the input, W backward for the weights"
                                                   : "F forward, B backward";
  if (scale.has_labels) text += "; F0 of micro-batch 0";
  if (scale.has_labels && planned.num_chunks() > 2) {
    text += ", F0.1 in the second chunk of the rank";
  } else if (planned.num_chunks() > 1) {
    text += std::string("; small: ") + (planned.num_chunks() == 2 ? "the second chunk" : "all but the first chunk");
  }
  if (!scale.has_labels) text += "; a column is " + number_text(1 / scale.columns_a_unit) + " of time";
  return text + "\n";
}

}  // namespace

TextStyle style_of_output() {
  TextStyle style;
  if (isatty(STDOUT_FILENO) != 1) return style;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) style.num_columns = size.ws_col;
  const char* terminal = std::getenv("TERM");
  style.has_colour = std::getenv("NO_COLOR") == nullptr && terminal != nullptr && std::string_view(terminal) != "dumb";
  return style;
}

std::string drawing(const PlannedSchedule& planned, const TextStyle& style) {
  const std::size_t num_ranks = planned.times.ranks.size();
  const std::size_t margin = margin_of(0, num_ranks).size();
  const std::size_t num_columns = style.num_columns > margin + 10 ? style.num_columns - margin : 10;
  const Scale scale = scale_for(planned, num_columns);
  std::string text;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const Line line = scale.has_labels ? line_of_labels(planned, rank, scale) : line_of_letters(planned, rank, scale);
    text += margin_of(rank, num_ranks) + line.text(style.has_colour) + "\n";
  }
  return text + legend_line(planned, scale);
}

}  // namespace tessera::app
