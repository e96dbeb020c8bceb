#pragma once

#include <tessera/comm/world.h>
#include <tessera/observe/observer.h>

#include <functional>
#include <memory>
#include <string>

#include "gpt/gpt.h"

namespace bench {

/// A GPT in training on one rank.
class Trainer {
 public:
  Trainer() = default;
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// The loss before the step. With an observer, parts of the step may be in its trace.
  virtual double step(tessera::observe::Observer* observer) = 0;
};

/// Throws ConfigError for a kind that it does not know.
using MakeTrainer = std::function<std::unique_ptr<Trainer>(const std::string& kind, const tessera::World& world,
                                                           const GptShape& shape)>;

/// One rank of a contest: PROGRAM BACKEND [LAYERS WIDTH HEADS VOCABULARY SEQUENCE BATCH]
/// It makes what a line of its input asks for:
///   KIND STEPS          a kind that `make` knows
///   trace:FOLDER STEPS  the same as "fsdp", traced into that folder
///   start 0             nothing, once all ranks are there
/// and answers with a line of JSON. Between lines it sleeps, so that others can be measured. Each kind trains a model
/// of its own, made when it is first asked for. All ranks get the same lines. Returns the program's exit code.
int answer_lines(int argc, char** argv, const MakeTrainer& make);

}  // namespace bench
