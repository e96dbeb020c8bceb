#include "options.h"

#include <tessera/core/config_file.h>
#include <tessera/core/error.h>

#include <cstdlib>
#include <iostream>

using tessera::FieldList;

const FieldList<TrainGptOptions>& TrainGptOptions::fields() {
  static const FieldList<TrainGptOptions> list =
      FieldList<TrainGptOptions>("train_gpt")
          .add("data", &TrainGptOptions::data_, "Tokens to train on, as `tessera data pack` writes them.")
          .add("validation", &TrainGptOptions::validation_, "Tokens to validate with.")
          .add("out", &TrainGptOptions::out_, "A folder for the trained model. Empty: none.")
          .add("checkpoints", &TrainGptOptions::checkpoints_,
               "A folder for checkpoints, from which the same command goes on. Empty: none.")
          .add("save_every", &TrainGptOptions::save_every_, "Steps between checkpoints.")
          .add("steps", &TrainGptOptions::steps_, "Updates of the weights.")
          .add("global_batch", &TrainGptOptions::global_batch_, "Samples of a step over all ranks.")
          .add("micro_batch", &TrainGptOptions::micro_batch_, "Samples of one forward on one rank.")
          .add("sequence_length", &TrainGptOptions::sequence_length_, "Tokens of a sample.")
          .add("learning_rate", &TrainGptOptions::learning_rate_, "At the top of the schedule.")
          .add("weight_decay", &TrainGptOptions::weight_decay_, "Of matrices; vectors have none.")
          .add("clip", &TrainGptOptions::clip_, "The largest norm of the gradients.")
          .add_choice("precision", &TrainGptOptions::precision_, {"fp32", "bf16"}, "Of matrix products.")
          .add("validate_every", &TrainGptOptions::validate_every_, "Steps between validations.")
          .add("validation_samples", &TrainGptOptions::validation_samples_, "Samples that a validation takes.")
          .add("seed", &TrainGptOptions::seed_, "Of the first weights and of the order of samples.")
          .add("prompt", &TrainGptOptions::prompt_, "What the trained model is to continue.")
          .section("model", &TrainGptOptions::model_, tessera::models::Gpt2Config::fields())
          .section("schedule", &TrainGptOptions::schedule_, tessera::ScheduleOptions::fields())
          .section("parallel", &TrainGptOptions::parallel_, tessera::ParallelizeOptions::fields())
          .section("checkpoint", &TrainGptOptions::checkpoint_, tessera::CheckpointOptions::fields())
          .section("observe", &TrainGptOptions::observe_, tessera::ObserveOptions::fields())
          .section("sample", &TrainGptOptions::sample_, tessera::models::GenerateOptions::fields());
  return list;
}

TrainGptOptions TrainGptOptions::from_command_line(int argc, char** argv) {
  TrainGptOptions options;
  std::string file;
  bool print = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    if (argument == "--print-config") {
      print = true;
    } else if (argument.starts_with("--") && equals != std::string::npos) {
      // After the file, so that the command line wins.
      if (file.empty()) throw tessera::ConfigError("name the TOML file before " + argument);
      fields().set_text(options, argument.substr(2, equals - 2), argument.substr(equals + 1));
    } else if (file.empty()) {
      file = argument;
      tessera::load_config(file, options);
    } else {
      throw tessera::ConfigError("usage: train_gpt FILE.toml [--key=value]... [--print-config], found " + argument);
    }
  }
  if (print) {
    std::cout << tessera::print_config(options);
    std::exit(0);
  }
  if (file.empty()) throw tessera::ConfigError("usage: train_gpt FILE.toml [--key=value]... [--print-config]");
  if (options.data().empty()) throw tessera::ConfigError(file + " does not say `data`: what to train on");
  if (options.validate_every() < 1 || options.save_every() < 1) {
    throw tessera::ConfigError("validate_every and save_every are numbers of steps, expected 1 or more");
  }
  auto layout = options.parallel().layout();
  if (layout.micro_batch_size() == 0) layout.micro_batch_size(static_cast<int>(options.micro_batch()));
  if (options.precision() == "bf16") layout.mixed_precision(true);
  options.parallel_.layout(layout);
  if (options.schedule().total_steps() == 0) options.schedule_.total_steps(options.steps());
  return options;
}
