#pragma once

#include <string>

#include "tessera/plan/planned_schedule.h"

namespace tessera::app {

/// A picture: a row for each rank, time to the right, a colour for each kind of computation.
std::string to_svg(const PlannedSchedule& planned);

/// The lists with their times, and all figures.
std::string to_json(const PlannedSchedule& planned);

}  // namespace tessera::app
