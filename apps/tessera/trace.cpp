// tessera trace: the traces of the ranks of a job.
#include <tessera/observe/tracer.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/commands.h"

namespace tessera::app {
namespace {

void merge(const std::string& merged, const std::vector<std::string>& files) {
  const auto traces = observe::merge_traces({files.begin(), files.end()}, merged);
  for (const observe::MergedTrace& trace : traces) {
    std::printf("rank %d: %lld packets, clock moved by %+.1f us (+- %.1f)\n", trace.rank,
                static_cast<long long>(trace.num_packets), static_cast<double>(trace.offset_ns) * 1e-3,
                static_cast<double>(trace.error_ns) * 1e-3);
    if (trace.num_lost_bytes > 0) {
      std::printf("rank %d: the last %lld bytes of %s are no whole packet and were left out\n", trace.rank,
                  static_cast<long long>(trace.num_lost_bytes), trace.path.c_str());
    }
  }
  std::printf("%s: open it at https://ui.perfetto.dev\n", merged.c_str());
}

}  // namespace

void add_trace(CLI::App& app) {
  CLI::App& trace = *app.add_subcommand("trace", "The traces of the ranks of a job");
  trace.require_subcommand(1);
  CLI::App& command = *trace.add_subcommand("merge", "Put the traces of all ranks on one time axis, in one file");
  const auto merged = std::make_shared<std::string>();
  const auto files = std::make_shared<std::vector<std::string>>();
  command.add_option("MERGED", *merged, "the file to write")->required();
  command.add_option("FILES", *files, "what the ranks wrote: NAME.rank0.pftrace NAME.rank1.pftrace ...")->required();
  command.callback([merged, files] { merge(*merged, *files); });
}

}  // namespace tessera::app
