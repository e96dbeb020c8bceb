#pragma once

#include <tessera/pipeline/pipeline_options.h>

#include <torch/nn/module.h>

#include <vector>

#include "pipeline/stage_model.h"

namespace tessera::pp {

/// All parameters and buffers of the model, each once, with the stages that the options give them. Stages follow the
/// order in which the model registers its modules. Throws ConfigError for a cut that does not fit.
std::vector<StageTensor> cut_into_stages(const torch::nn::Module& model, const PipelineOptions& options,
                                         int num_stages);

}  // namespace tessera::pp
