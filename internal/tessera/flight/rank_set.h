#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::flight {

/// Ranks as people write them: "3", "0-3", "0-12:4" (every fourth), joined by commas. In ascending order.
std::string ranks_text(std::vector<int> ranks);

/// The ranks that such a text names. From a text that was cut off or is malformed, those before the fault.
std::vector<int> parse_ranks(std::string_view text);

}  // namespace tessera::flight
