// Parameters that come from elsewhere than the ranks' memory: a source that knows nothing of fsdp.
#include <tessera/core/error.h>
#include <tessera/shard/flat_source.h>

#include <gtest/gtest.h>

#include <fstream>

#include "fsdp/chain.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

struct Counts {
  int num_flat_parameters = 0;
  int num_read = 0;
  int num_written = 0;
};

/// Keeps this rank's part of a flat parameter in a file. What an optimizer writes to is a working copy: when that has
/// ended it goes to the file, and a use reads the file.
class FileSource : public FlatSource {
 public:
  FileSource(FlatSpec spec, Communicator ranks, std::string path, BufferPool buffers, Counts& counts)
      : spec_(std::move(spec)),
        ranks_(std::move(ranks)),
        path_(std::move(path)),
        buffers_(std::move(buffers)),
        counts_(counts),
        shard_(at::zeros({spec_.partition.of(ranks_.rank()).size},
                         at::TensorOptions(spec_.shard_dtype).device(spec_.device))) {}

  at::Tensor make_shard() override { return shard_; }
  void start(const at::Tensor& /*shard*/) override {
    whole_.emplace(spec_.partition.num_elements(), spec_.compute_dtype, spec_.device, "it is on its way");
    whole_->give(buffers_.lend(static_cast<std::size_t>(whole_->num_bytes())));
    const at::Tensor part = at::empty_like(shard_);
    std::ifstream(path_, std::ios::binary)
        .read(static_cast<char*>(part.mutable_data_ptr()), static_cast<std::streamsize>(part.nbytes()));
    ++counts_.num_read;
    ranks_.all_gather_into(whole_->flat(), part, spec_.partition.sizes());
  }
  void finish(HollowStorage& flat) override { flat.give(whole_->take("")); }
  void release(HollowStorage& flat, bool /*keep_bytes*/, const std::string& why) override { flat.take(why); }
  void own(HollowStorage& /*flat*/) override {}
  void before_write() override {}
  void after_write() override {
    std::ofstream(path_, std::ios::binary)
        .write(static_cast<const char*>(shard_.const_data_ptr()), static_cast<std::streamsize>(shard_.nbytes()));
    ++counts_.num_written;
  }

 private:
  FlatSpec spec_;
  Communicator ranks_;
  std::string path_;
  BufferPool buffers_;
  Counts& counts_;
  at::Tensor shard_;
  std::optional<HollowStorage> whole_;
};

class FileSources : public FlatSources {
 public:
  FileSources(const FlatSourcesSpec& spec, std::string folder, Counts& counts)
      : ranks_(spec.ranks),
        folder_(std::move(folder)),
        buffers_(host_pages, spec.buffer_bytes, spec.device),
        counts_(counts) {}

  std::unique_ptr<FlatSource> make(const FlatSpec& spec) override {
    ++counts_.num_flat_parameters;
    const std::string path = folder_ + "/unit" + std::to_string(spec.unit) + "." + std::to_string(ranks_.world_rank());
    return std::make_unique<FileSource>(spec, ranks_, path, buffers_, counts_);
  }
  BufferPool& buffers() override { return buffers_; }

 private:
  Communicator ranks_;
  std::string folder_;
  BufferPool buffers_;
  Counts& counts_;
};

TEST(FlatSources, OfTheProgramServeEveryStrategy) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kZero1}) {
    const Training<Chain> training{.pass = one_backward<Chain>};
    const Values expected = train_alone(training);
    const TemporaryFolder folder;
    run_threads(training.num_ranks, [&](const World& world) {
      Counts counts;
      Training<Chain> with_files = training;
      with_files.options.strategy(strategy).flat_sources([&](const FlatSourcesSpec& spec) {
        EXPECT_EQ(spec.num_flat_parameters, 3);
        EXPECT_TRUE(spec.device.is_cpu());
        return std::make_shared<FileSources>(spec, folder.path().string(), counts);
      });
      expect_close(train_sharded<Chain>(with_files, world, nullptr), expected, 1e-9);
      EXPECT_EQ(counts.num_flat_parameters, 3);
      EXPECT_GE(counts.num_read, 3 * training.num_steps) << "each of them was read in each step";
      EXPECT_GE(counts.num_written, 3 * (1 + training.num_steps)) << "at first, and after each step of the optimizer";
    });
  }
}

TEST(FlatSources, HearOfWhatIsLoaded) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    Counts counts;
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units().flat_sources([&](const FlatSourcesSpec& spec) {
      return std::make_shared<FileSources>(spec, folder.path().string(), counts);
    }));
    const torch::NoGradGuard no_grad;
    sharded.before_write();
    for (auto& slice : sharded.state_slices()) {
      std::fill_n(slice.values.mutable_data_ptr<double>(), slice.values.numel(), 0.25);
    }
    sharded.after_write();
    const auto expected = filled_chain();
    for (auto& parameter : expected->parameters()) parameter.fill_(0.25);
    EXPECT_TRUE(torch::equal(model->forward(chain_input(0, 0)), expected->forward(chain_input(0, 0))));
    model->second->weight.mul_(2);  // by an operator
    expected->second->weight.mul_(2);
    EXPECT_TRUE(torch::equal(model->forward(chain_input(0, 0)), expected->forward(chain_input(0, 0))));
  });
}

}  // namespace
}  // namespace tessera::testing
