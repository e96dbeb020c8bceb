#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/operator_call.h>
#include <tessera/intercept/read_only.h>

#include <utility>

namespace tessera::intercept {
namespace {

class ReadOnlyData : public ActingData {
 public:
  ReadOnlyData(const ActingKind& kind, std::string why, const at::Tensor& original)
      : ActingData(kind), why_(std::move(why)), original_(original.defined() ? original.detach() : at::Tensor()) {
    if (original_.defined() && !original_.is_inference()) version_ = original_._version();
  }
  const std::string& why() const { return why_; }
  bool is_out_of_date() const {
    return original_.defined() && !original_.is_inference() && original_._version() != version_;
  }

 private:
  std::string why_;
  at::Tensor original_;
  std::int64_t version_ = 0;
};

at::Tensor guarded(at::Tensor copy, ActingDataPtr data) {
  const auto sizes = copy.sizes().vec();
  const auto strides = copy.strides().vec();
  return make_acting(std::move(copy), std::move(data), sizes, strides);
}

class ReadOnlyKind : public ActingKind {
 public:
  std::string name() const override { return "read-only tensor"; }
  int level() const override { return 0; }  // inside all others, to whom it is a plain tensor

  void call(OperatorCall& call) const override {
    ActingDataPtr guard;
    call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
      ActingDataPtr data = acting_data(tensor, *this);
      if (!data) return {};
      if (call.writes(index)) {
        throw ConfigError(call.name() + " would write to a copy, and that would be lost: " +
                          static_cast<const ReadOnlyData&>(*data).why());
      }
      if (static_cast<const ReadOnlyData&>(*data).is_out_of_date()) {
        throw ConfigError(call.name() + " would read a copy that is out of date, since the original was written to: " +
                          static_cast<const ReadOnlyData&>(*data).why());
      }
      guard = std::move(data);
      return inner_of(tensor);
    });
    const bool is_view = call.returns_view();
    call.run();
    if (!is_view) return;
    call.for_each_result([&](std::size_t, const at::Tensor& result) { return guarded(result, guard); });
  }

  at::Tensor inner_gradient(const at::Tensor& gradient, const ActingData& /*data*/) const override {
    return acting_data(gradient, *this) ? inner_of(gradient) : gradient;
  }
  at::Tensor outer_gradient(const at::Tensor& gradient, const ActingDataPtr& /*data*/) const override {
    return gradient;
  }
};

}  // namespace

at::Tensor make_read_only(at::Tensor copy, std::string why, const at::Tensor& original) {
  static const ReadOnlyKind kind;
  return guarded(std::move(copy), c10::make_intrusive<ReadOnlyData>(kind, std::move(why), original));
}

}  // namespace tessera::intercept
