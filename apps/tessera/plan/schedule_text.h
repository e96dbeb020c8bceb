#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/plan/planned_schedule.h"

namespace tessera::app {

/// How a drawing may look.
struct TextStyle {
  std::size_t num_columns = 120;
  bool has_colour = false;
};

/// The style for standard output: colours and the width of the terminal if it is one.
TextStyle style_of_output();

/// A line for each rank with time to the right, and a legend. If operations with their micro-batches do not fit into
/// the columns, a letter for what each rank does most of the time of a column.
std::string drawing(const PlannedSchedule& planned, const TextStyle& style);

/// Makespan, idle times beside the formula, activations.
std::string figures(const PlannedSchedule& planned);

/// The operations of each rank, one in a line, with their times.
std::string operation_list(const PlannedSchedule& planned);

/// A line for each schedule.
std::string comparison(const std::vector<PlannedSchedule>& planned);

}  // namespace tessera::app
