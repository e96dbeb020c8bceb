// tessera-torch facts: what this build is made of, as one line of JSON. `tessera doctor` reads it.
#include <tessera/comm/build.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/commands.h"

namespace tessera::app {

void add_facts(CLI::App& app) {
  app.add_subcommand("facts", "Print what this build is made of, as JSON")->callback([] {
    const CommBuild build = comm_build();
    const nlohmann::json facts = {
        {"libtorch", TORCH_VERSION},
        {"cxx_flags", at::get_cxx_flags()},
        {"build", at::show_config()},
        {"parallel", at::get_parallel_info()},
        {"cpu_capability", at::get_cpu_capability()},
        {"num_threads", at::get_num_threads()},
        {"backends", {{"host", true}, {"gloo", true}, {"mpi", build.mpi}, {"nccl", build.nccl}}},
        {"mpi_version", build.mpi_version},
    };
    std::printf("%s\n", facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  });
}

}  // namespace tessera::app
