// As torch_pch.h for the modules above the models: all of LibTorch's front, and its reducer.
#pragma once

#include "torch_pch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/torch.h>
