#pragma once

#include <tessera/core/arg.h>

#include <map>
#include <string>

namespace tessera {

/// How strict TrainingState::restore() is, and what is called otherwise in the checkpoint.
struct RestoreOptions {
 public:
  using Names = std::map<std::string, std::string>;

  /// What the checkpoint lacks stays as it is. For a model that has got new layers, say.
  TESSERA_ARG(bool, allow_missing) = false;
  /// What the checkpoint has too much is left out. For a program that takes the weights alone, say.
  TESSERA_ARG(bool, allow_unexpected) = false;
  /// Takes the parameters and buffers of the model, all of them, and nothing else: optimizer, schedule, sampler and
  /// random numbers begin anew. For a step that was imported, or to train on with another optimizer.
  TESSERA_ARG(bool, weights_only) = false;
  /// By the name of a parameter or buffer here, what it is called there. Goes for the optimizer's state too.
  TESSERA_ARG(Names, rename);
};

}  // namespace tessera
