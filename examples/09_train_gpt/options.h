#pragma once

#include <tessera/checkpoint/checkpoint_options.h>
#include <tessera/observe/observe_options.h>
#include <tessera/optim/schedule.h>
#include <tessera/train/parallelize.h>

#include <torch/arg.h>

#include <cstdint>
#include <string>

#include "generation/options.h"
#include "gpt2/config.h"

/// Everything that train_gpt.toml can say.
struct TrainGptOptions {
  /// Tokens to train on and to validate with, as `tessera data pack` writes them.
  TORCH_ARG(std::string, data) = "";
  TORCH_ARG(std::string, validation) = "";
  /// Where the trained model goes, as Hugging Face's tools read it. Empty: nowhere.
  TORCH_ARG(std::string, out) = "";
  /// Where the run keeps its checkpoints, from which the same command goes on. Empty: it keeps none.
  TORCH_ARG(std::string, checkpoints) = "";
  /// Steps between them.
  TORCH_ARG(std::int64_t, save_every) = 100;
  TORCH_ARG(std::int64_t, steps) = 600;
  /// Samples of a step over all ranks, and of one forward on one rank.
  TORCH_ARG(std::int64_t, global_batch) = 32;
  TORCH_ARG(std::int64_t, micro_batch) = 16;
  TORCH_ARG(std::int64_t, sequence_length) = 128;
  TORCH_ARG(double, learning_rate) = 1e-3;
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, clip) = 1.0;
  /// "fp32", or "bf16" for matrix products.
  TORCH_ARG(std::string, precision) = "fp32";
  TORCH_ARG(std::int64_t, validate_every) = 100;
  /// How many samples a validation takes.
  TORCH_ARG(std::int64_t, validation_samples) = 128;
  TORCH_ARG(std::int64_t, seed) = 0;
  /// What the trained model is to continue.
  TORCH_ARG(std::string, prompt) = "The license";

  TORCH_ARG(tessera::models::Gpt2Config, model) =
      tessera::models::Gpt2Config().vocab_size(256).context(128).width(192).num_layers(4).num_heads(6).dropout(0.0);
  TORCH_ARG(tessera::ScheduleOptions, schedule);
  /// How the ranks share the model. Parameters keep their own tensors, since some of them decay and some do not.
  TORCH_ARG(tessera::ParallelizeOptions,
            parallel) = tessera::ParallelizeOptions().fsdp(tessera::FsdpOptions().use_orig_params(true));
  TORCH_ARG(tessera::CheckpointOptions, checkpoint) = tessera::CheckpointOptions().keep_last(2).asynchronous(true);
  TORCH_ARG(tessera::ObserveOptions, observe);
  TORCH_ARG(tessera::models::GenerateOptions, sample);

 public:
  static const tessera::FieldList<TrainGptOptions>& fields();
  /// `train_gpt FILE.toml [--print-config]`. Throws ConfigError, all faults at once.
  static TrainGptOptions from_command_line(int argc, char** argv);
};
