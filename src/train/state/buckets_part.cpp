#include <ATen/ATen.h>

#include <cstdint>

#include "train/state/hook_memory.h"
#include "train/state/model_tensors.h"
#include "train/state/state_part.h"

namespace tessera::train {
namespace {

constexpr const char* kTensor = "ddp/buckets";
constexpr const char* kSize = "ddp/bucket_bytes";

using Buckets = DistributedModel::Buckets;

at::Tensor to_tensor(const Buckets& buckets) {
  std::vector<std::int64_t> rows;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const std::int64_t parameter : buckets[b]) {
      rows.push_back(static_cast<std::int64_t>(b));
      rows.push_back(parameter);
    }
  }
  const auto num_rows = static_cast<std::int64_t>(rows.size() / 2);
  return at::from_blob(rows.data(), {num_rows, 2}, at::kLong).clone();
}

/// What is wrong with it is found by who takes it.
Buckets from_tensor(const at::Tensor& tensor) {
  Buckets buckets;
  std::int64_t last = -1;
  const auto* row = tensor.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tensor.size(0); ++i, row += 2) {
    if (i == 0 || row[0] != last) buckets.emplace_back();
    last = row[0];
    buckets.back().push_back(row[1]);
  }
  return buckets;
}

class BucketsPart : public StatePart {
 public:
  BucketsPart(const DistributedModel& model, int rank, int num_ranks) : model_(model), hook_(model, rank, num_ranks) {}

  void capture(RankState& into) const override {
    const Buckets buckets = model_.buckets();
    hook_.capture(buckets, into);
    if (buckets.empty()) return;
    const at::Tensor tensor = to_tensor(buckets);
    into.slices.push_back(whole_slice(kTrainingGroup, kTensor, tensor));
    into.values[kSize] = model_.bucket_bytes();
  }

  void plan(SavedNames& names) override {
    tensor_ = at::Tensor();
    why_not_.clear();
    plan_buckets(names);
    hook_.plan(names, tensor_.defined());
  }

  std::vector<HeldSlice> prepare() override {
    std::vector<HeldSlice> slices = hook_.prepare();
    if (!tensor_.defined()) return slices;
    slices.push_back(whole_slice(kTrainingGroup, kTensor, tensor_));
    return slices;
  }

  void finish(std::vector<std::string>& notes) override {
    const Buckets buckets = tensor_.defined() ? from_tensor(tensor_) : Buckets();
    tensor_ = at::Tensor();
    if (!why_not_.empty()) {
      notes.push_back("the buckets of gradients are not those of the saved run, because " + why_not_ +
                      ": on three ranks and more sums are rounded differently");
    }
    if (!buckets.empty()) model_.set_buckets(buckets);
    hook_.finish(buckets, notes);
  }

 private:
  void plan_buckets(SavedNames& names) {
    const ManifestTensor* const found = names.find_tensor(kTrainingGroup, kTensor);
    if (!found || model_.bucket_bytes() == 0) return;
    const auto num_parameters = static_cast<std::int64_t>(model_.averaged_parameters().size());
    if (found->shape != std::vector<std::int64_t>{num_parameters, 2}) {
      why_not_ = "other parameters are trained";
    } else if (names.take_value<std::int64_t>(kSize) != model_.bucket_bytes()) {
      why_not_ = "another size of buckets is asked for";
    } else {
      tensor_ = at::zeros(found->shape, at::kLong);
    }
  }

  DistributedModel model_;
  HookMemory hook_;
  at::Tensor tensor_;
  std::string why_not_;
};

}  // namespace

std::unique_ptr<StatePart> buckets_part(const DistributedModel& model, int rank, int num_ranks) {
  return std::make_unique<BucketsPart>(model, rank, num_ranks);
}

}  // namespace tessera::train
