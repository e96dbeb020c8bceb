#pragma once

// Everything for programs. Inside Tessera, and where compile time matters, include the headers that are used.

#include <tessera/comm/communicator.h>
#include <tessera/comm/world.h>
#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include <tessera/core/log.h>
#include <tessera/core/options.h>
#include <tessera/data_parallel/data_parallel.h>
#include <tessera/data_parallel/ddp_options.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/distributed_data_parallel.h>
#include <tessera/data_parallel/gradient_hook.h>
#include <tessera/data_parallel/gradient_hooks.h>
#include <tessera/data_parallel/sync_batch_norm.h>
#include <tessera/data_parallel/synchroniser.h>
#include <tessera/data_parallel/synchroniser_options.h>
#include <tessera/mesh/axis_layout.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/layout_warnings.h>
#include <tessera/mesh/mesh_axis.h>
#include <tessera/mesh/process_group_ids.h>
#include <tessera/mesh/rank_mapping.h>
#include <tessera/mesh/ranks.h>
#include <tessera/mesh/stage_layers.h>
#include <tessera/mesh/three_d_parallelism.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/autocast.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/optim/schedule.h>
#include <tessera/version.h>
