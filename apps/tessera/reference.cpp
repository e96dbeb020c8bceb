// tessera reference: the tables of docs/reference, from the lists of fields themselves.
#include <tessera/checkpoint/checkpoint_options.h>
#include <tessera/comm/world.h>
#include <tessera/core/config_file.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/synchroniser.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/launch/run_options.h>
#include <tessera/observe/observe_options.h>
#include <tessera/offload/offload_options.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/optim/schedule.h>
#include <tessera/pipeline/pipeline_options.h>
#include <tessera/tensor_parallel/tensor_parallel.h>
#include <tessera/tokens/pack.h>
#include <tessera/train/loader.h>
#include <tessera/train/model_parallel.h>
#include <tessera/train/parallelize.h>
#include <tessera/train/sampler.h>
#include <tessera/train/token_dataset.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "tessera/commands.h"

namespace tessera::app {
namespace {

void print(const std::string& title, const std::string& where, const FieldTable& fields) {
  std::printf("# %s\n\n%s\n\n%s", title.c_str(), where.c_str(), reference_table(fields).c_str());
}

void add_data_references(CLI::App& command) {
  command.add_subcommand("pack", "PackOptions")->callback([] {
    print("Options of `tessera data pack`",
          "`tessera::PackOptions`, also for `tessera::pack()`. In a TOML file (`--config FILE`) these are the keys, on "
          "the command line the flags, with dashes: `--end-of-document true`.",
          PackOptions::fields());
  });
  command.add_subcommand("sampler", "SamplerOptions")->callback([] {
    print("Options of a sampler",
          "`tessera::SamplerOptions`, for `tessera::Sampler`. In a TOML file these are the keys.",
          SamplerOptions::fields());
  });
  command.add_subcommand("token_dataset", "TokenDatasetOptions")->callback([] {
    print("Options of a token dataset",
          "`tessera::TokenDatasetOptions`, for `tessera::TokenDataset`. In a TOML file these are the keys.",
          TokenDatasetOptions::fields());
  });
  command.add_subcommand("loader", "LoaderOptions")->callback([] {
    print("Options of a loader", "`tessera::LoaderOptions`, for `tessera::Loader`. In a TOML file these are the keys.",
          LoaderOptions::fields());
  });
}

}  // namespace

void add_reference(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("reference", "Print the reference of an options type as Markdown");
  command.require_subcommand(1);
  command.add_subcommand("world", "WorldOptions")->callback([] {
    print("Options of a world",
          "`tessera::WorldOptions`, for `tessera::init()`. In a TOML file, which `load_config()` reads, these are "
          "the keys; `tessera run` has no such flags.",
          WorldOptions::fields());
  });
  command.add_subcommand("run", "RunOptions")->callback([] {
    print(
        "Options of `tessera run`",
        "`tessera::RunOptions`. In a TOML file (`--config FILE`) these are the keys. On the command line they are the "
        "flags, with dashes or underscores: `--nproc-per-node 4`, `--nproc_per_node=4`.",
        RunOptions::fields());
  });
  command.add_subcommand("ddp", "DdpOptions")->callback([] {
    print(
        "Options of data parallelism",
        "`tessera::DdpOptions`, for `tessera::distribute()`. In a TOML file these are the keys. A hook of your own is "
        "given in the program: `DdpOptions::hook`.",
        DdpOptions::fields());
  });
  command.add_subcommand("parallelize", "ParallelizeOptions")->callback([] {
    print("Options of parallelize",
          "`tessera::ParallelizeOptions`, for `tessera::parallelize()`. In a TOML file these are the keys, below the "
          "name that the program gives them: `[parallel.fsdp]`.",
          ParallelizeOptions::fields());
  });
  command.add_subcommand("model_parallel", "ModelParallelConfig")->callback([] {
    print("Config of model parallelism",
          "`tessera::ModelParallelConfig`, for `tessera::ModelParallelContext`. In a TOML file these are the keys.",
          ModelParallelConfig::fields());
  });
  command.add_subcommand("offload", "OffloadOptions")->callback([] {
    print("Options of offload",
          "`tessera::OffloadOptions`, for `tessera::Offload`: where the parts of a sharded model lie while nobody uses "
          "them. In a TOML file these are the keys; sizes are in bytes, for each rank.",
          OffloadOptions::fields());
  });
  command.add_subcommand("fsdp", "FsdpOptions")->callback([] {
    print(
        "Options of fully sharded training",
        "`tessera::FsdpOptions`, for `tessera::fully_shard()`. In a TOML file these are the keys. Set in the program: "
        "which modules become units, `FsdpOptions::auto_wrap`, and types of single units, "
        "`FsdpOptions::unit_precision`.",
        FsdpOptions::fields());
  });
  command.add_subcommand("tensor_parallel", "TensorParallelOptions")->callback([] {
    print("Options of tensor parallelism",
          "`tessera::TensorParallelOptions`, for `tessera::tensor_parallel()`. In a TOML file these are the keys.",
          TensorParallelOptions::fields());
  });
  command.add_subcommand("pipeline", "PipelineOptions")->callback([] {
    print("Options of pipelines",
          "`tessera::PipelineOptions`, for `tessera::pipeline()`. In a TOML file these are the keys. Set in the "
          "program: a "
          "schedule of one's own, `PipelineOptions::own_schedule`.",
          PipelineOptions::fields());
  });
  command.add_subcommand("synchroniser", "SynchroniserOptions")->callback([] {
    print("Options of training out of step",
          "`tessera::SynchroniserOptions`, for `tessera::Synchroniser`. In a TOML file these are the keys.",
          SynchroniserOptions::fields());
  });
  command.add_subcommand("schedule", "ScheduleOptions")->callback([] {
    print("Options of the learning rate's schedule",
          "`tessera::ScheduleOptions`, for `tessera::LrSchedule`. In a TOML file these are the keys.",
          ScheduleOptions::fields());
  });
  command.add_subcommand("grad_scaler", "GradScalerOptions")->callback([] {
    print("Options of loss scaling",
          "`tessera::GradScalerOptions`, for `tessera::GradScaler`. In a TOML file these are the keys.",
          GradScalerOptions::fields());
  });
  command.add_subcommand("checkpoint", "CheckpointOptions")->callback([] {
    print("Options of checkpoints",
          "`tessera::CheckpointOptions`, for `tessera::CheckpointFolder`. In a TOML file these are the keys.",
          CheckpointOptions::fields());
  });
  add_data_references(command);
  command.add_subcommand("observe", "ObserveOptions")->callback([] {
    print("Options of watching",
          "`tessera::ObserveOptions`, for `tessera::make_observer()`. In a TOML file these are the keys.",
          ObserveOptions::fields());
  });
}

}  // namespace tessera::app
