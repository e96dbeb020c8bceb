#pragma once

#include <future>
#include <vector>

namespace tessera::testing {

/// Calls `body` with every case at the same time, each on a thread of its own: for cases that mostly wait. Throws what
/// one of them throws, after all have ended.
template <typename Cases, typename Body>
void at_once(const Cases& cases, const Body& body) {
  std::vector<std::future<void>> all;
  for (const auto& each : cases) all.push_back(std::async(std::launch::async, [&body, &each] { body(each); }));
  for (auto& one : all) one.get();
}

}  // namespace tessera::testing
