#include <tessera/core/error.h>
#include <tessera/offload/offload.h>
#include <tessera/shard/buffer_pool.h>
#include <tessera/shard/gathered_copy.h>

#include <ATen/ATen.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "offload/file_source.h"
#include "offload/offload_memory.h"
#include "offload/piece_stream.h"
#include "offload/places.h"

namespace tessera {

using offload::bytes_text;
using offload::Kind;
using offload::OffloadMemory;
using offload::Places;

struct Offload::State {
  std::shared_ptr<Places> places;
  std::shared_ptr<OffloadMemory> memory;
  bool is_used = false;  // by a model
};

namespace {

/// A shard in a file, which the optimizer's step finds there.
class SteppedFileSource : public offload::FileSource {
 public:
  SteppedFileSource(std::shared_ptr<OffloadMemory> memory, const std::shared_ptr<Places>& places,
                    const Communicator& comm, const FlatSpec& spec, BufferPool buffers)
      : FileSource(places, comm, spec, std::move(buffers)),
        memory_(std::move(memory)),
        gradients_in_files_(places->options.gradients() == Tier::kFile) {}
  ~SteppedFileSource() override { memory_->forget(shard().flat()); }

  at::Tensor make_shard() override {
    at::Tensor made = FileSource::make_shard();
    memory_->keep(made, this, spec().name);
    return made;
  }
  bool keeps_gradient() const override { return gradients_in_files_; }
  at::Tensor keep_gradient(const at::Tensor& shard, const at::Tensor& average) override {
    return memory_->keep_gradient(shard, average);
  }

 private:
  std::shared_ptr<OffloadMemory> memory_;
  bool gradients_in_files_;
};

/// A shard in host memory.
class HostSource : public GatheredCopy {
 public:
  HostSource(std::shared_ptr<OffloadMemory> memory, std::shared_ptr<Places> places, const Communicator& comm,
             const FlatSpec& spec, BufferPool buffers)
      : GatheredCopy(comm, spec, std::move(buffers)),
        memory_(std::move(memory)),
        places_(std::move(places)),
        spec_(spec),
        num_elements_(spec.partition.of(comm.rank()).size) {}
  ~HostSource() override {
    if (shard_.defined()) memory_->forget(shard_);
  }

  at::Tensor make_shard() override {
    const auto num_bytes = static_cast<std::size_t>(num_elements_) * c10::elementSize(spec_.shard_dtype);
    const auto bytes = places_->memory->take(num_bytes, Kind::kParameters, "the parameters of " + spec_.name);
    shard_ = offload::tensor_in(bytes, num_elements_, spec_.shard_dtype);
    memory_->keep(shard_, nullptr, spec_.name);
    return shard_;
  }
  /// Else nobody would ask start(), which refuses a part that a failed step has left half stepped.
  bool is_whole_itself() const override { return !places_->options.uses_files(); }
  void start(const at::Tensor& shard) override {
    places_->require_whole();
    GatheredCopy::start(shard);
  }
  bool keeps_gradient() const override { return places_->options.gradients() == Tier::kFile; }
  at::Tensor keep_gradient(const at::Tensor& shard, const at::Tensor& average) override {
    return memory_->keep_gradient(shard, average);
  }

 private:
  std::shared_ptr<OffloadMemory> memory_;
  std::shared_ptr<Places> places_;
  FlatSpec spec_;
  std::int64_t num_elements_;
  at::Tensor shard_;
};

/// Memory for parameters that are whole, within its budget.
AllocateBytes whole_memory(std::shared_ptr<Places> places, const Communicator& comm) {
  return [places = std::move(places), comm](std::size_t num_bytes) -> std::shared_ptr<void> {
    struct Whole {
      offload::Budget::Share share;
      std::shared_ptr<void> memory;  // goes before its share
    };
    auto whole = std::make_shared<Whole>();
    whole->share = places->device_parameters->take(num_bytes, Kind::kParameters, "whole parameters");
    if (comm.allocator()) {
      auto tensor = std::make_shared<at::Tensor>(comm.empty({static_cast<std::int64_t>(num_bytes)}, at::kByte));
      whole->memory = std::shared_ptr<void>(tensor, tensor->mutable_data_ptr());
    } else {
      whole->memory = host_pages(num_bytes);
    }
    return {whole, whole->memory.get()};
  };
}

class OffloadSources : public FlatSources {
 public:
  OffloadSources(std::shared_ptr<Places> places, std::shared_ptr<OffloadMemory> memory, const FlatSourcesSpec& spec)
      : places_(std::move(places)),
        memory_(std::move(memory)),
        comm_(spec.ranks),
        buffers_(whole_memory(places_, comm_), spec.buffer_bytes, spec.device) {
    places_->memory->set_drop_one([weak = std::weak_ptr(memory_)] {
      const auto kept = weak.lock();
      return kept && kept->drop_one_copy();
    });
    if (!in_files()) return;
    places_->files->reserve(spec.part_bytes);
  }
  ~OffloadSources() override { places_->memory->set_drop_one(nullptr); }

  std::unique_ptr<FlatSource> make(const FlatSpec& spec) override {
    if (in_files()) return std::make_unique<SteppedFileSource>(memory_, places_, comm_, spec, buffers_);
    return std::make_unique<HostSource>(memory_, places_, comm_, spec, buffers_);
  }
  BufferPool& buffers() override { return buffers_; }
  std::size_t num_expected() const override {
    return in_files() ? static_cast<std::size_t>(places_->options.prefetch_parameters()) : 0;
  }
  void on_writes(std::function<void()> begin, std::function<void()> end) override {
    memory_->on_writes(std::move(begin), std::move(end));
  }

 private:
  bool in_files() const { return places_->options.parameters() == Tier::kFile; }

  std::shared_ptr<Places> places_;
  std::shared_ptr<OffloadMemory> memory_;
  Communicator comm_;
  BufferPool buffers_;
};

/// What does not fit whatever the training does, before anything is moved.
void require_room(const OffloadOptions& options, const FlatSourcesSpec& spec) {
  std::vector<std::string> faults;
  const auto check = [&](std::size_t needed, std::int64_t limit, const std::string& what, const std::string& option,
                         const std::string& fix) {
    if (needed <= static_cast<std::size_t>(limit)) return;
    faults.push_back(what + " needs up to " + bytes_text(needed) + ", and " + option + " is " +
                     bytes_text(static_cast<std::uint64_t>(limit)) + ": " + fix);
  };
  check(spec.whole_bytes, options.device_parameter_bytes(), "what is whole at a time of the parameters",
        "device_parameter_bytes", "raise it, or use smaller units (FsdpOptions::max_unit_bytes, a wrap policy)");
  // A part in use and one that is read ahead, or pieces of a step: one that is stepped and one that is written.
  constexpr std::size_t kTensors = 5;  // a parameter, its gradient and three states of AdamW with amsgrad
  const std::size_t of_step = options.uses_files() ? 2 * kTensors * offload::PieceStream::kTensorBytes : 0;
  if (options.parameters() == Tier::kFile) {
    check(std::max(2 * spec.largest_part_bytes, of_step), options.host_bytes(),
          "host memory for what is on its way from and to files", "host_bytes", "raise it, or use smaller units");
  } else {
    check(spec.part_bytes + of_step, options.host_bytes(), "host memory for this rank's parts of the parameters",
          "host_bytes", "raise it, use more ranks, or put parameters into files");
  }
  if (faults.empty()) return;
  std::string text = "what is offloaded does not fit (rank " + std::to_string(spec.ranks.world_rank()) + "):";
  for (const std::string& fault : faults) text += "\n  - " + fault;
  throw ConfigError(text);
}

void require_cpu(const FlatSourcesSpec& spec) {
  if (!spec.device.is_cpu()) {
    throw ConfigError("offload keeps parts of models that train on the CPU, and this one is on " + spec.device.str() +
                      " (rank " + std::to_string(spec.ranks.world_rank()) +
                      "): shard it without offload, as devices are not supported yet");
  }
}

}  // namespace

Offload::Offload(const OffloadOptions& options) : state_(std::make_shared<State>()) {
  const auto faults = options.faults();
  if (!faults.empty()) {
    std::string text = "what is offloaded cannot be kept so:";
    for (const std::string& fault : faults) text += "\n  - " + fault;
    throw ConfigError(text);
  }
  state_->places = std::make_shared<Places>(options);
  state_->memory = std::make_shared<OffloadMemory>(state_->places);
}

MakeFlatSources Offload::sources() const {
  return [state = state_](const FlatSourcesSpec& spec) -> std::shared_ptr<FlatSources> {
    if (std::exchange(state->is_used, true)) {
      throw ConfigError("this tessera::Offload keeps another model already (rank " +
                        std::to_string(spec.ranks.world_rank()) + "): make one for each model");
    }
    require_cpu(spec);
    require_room(state->places->options, spec);
    return std::make_shared<OffloadSources>(state->places, state->memory, spec);
  };
}

OffloadFigures Offload::figures() const {
  const Places& places = *state_->places;
  OffloadFigures figures;
  if (places.files) {
    const offload::FileTraffic traffic = places.files->traffic();
    figures.bytes_read = traffic.bytes_read;
    figures.bytes_written = traffic.bytes_written;
    figures.num_repeated = traffic.num_repeated;
    figures.transfer_seconds = traffic.busy_seconds;
  }
  figures.parameter_wait_seconds = places.parameter_wait_seconds;
  figures.step_wait_seconds = places.step_wait_seconds;
  figures.host_bytes = places.host->used_bytes();
  figures.peak_host_bytes = places.host->peak_bytes();
  figures.device_bytes = places.device_parameters->used_bytes();
  figures.peak_device_bytes = places.device_parameters->peak_bytes();
  return figures;
}

std::string Offload::text() const {
  const Places& places = *state_->places;
  std::string text = places.host->text() + "\n" + places.device_parameters->text();
  if (places.files) text += "\nfiles: " + places.files->text();
  return text;
}

}  // namespace tessera
