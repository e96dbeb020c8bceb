// Any text as a snapshot and as a report: what reads must write to something that reads the same, and can be shown.
#include <tessera/core/error.h>
#include <tessera/flight/hang_report.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/expect.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto snapshot = flight::snapshot_from_json(text);
    const auto written = flight::to_json(snapshot, snapshot.calls.size());
    fuzz::expect(flight::to_json(flight::snapshot_from_json(written), snapshot.calls.size()) == written,
                 "a snapshot survives");
  } catch (const ConfigError&) {
  }
  try {
    const auto report = flight::hang_report_from_json(text);
    fuzz::expect(!flight::to_text(report).empty(), "a report has a text");
    flight::analyse(report.trigger, report.fatal, report.time_ns, report.world_size, report.ranks);
  } catch (const ConfigError&) {
  }
  return 0;
}
