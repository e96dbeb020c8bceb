// Each rule against the same operator on whole tensors: random shapes, cuts and arguments, with uneven and empty parts.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/require.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/sharded.h"

namespace tessera::tp {
namespace {

using at::Tensor;
using testing::require;
using testing::require_equal;
using Sizes = std::vector<std::int64_t>;

/// What one case computes: the same program for whole tensors and for cut ones. It draws the same numbers each time.
class Program {
 public:
  Program(unsigned seed, std::shared_ptr<TensorAxis> axis) : random_(seed), axis_(std::move(axis)) {}

  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(random_() % static_cast<unsigned>(limit)); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool coin() { return below(2) == 0; }
  template <class T>
  T one_of(const std::vector<T>& items) {
    return items[static_cast<std::size_t>(below(static_cast<std::int64_t>(items.size())))];
  }
  std::int64_t length() { return one_of<std::int64_t>({1, 2, 3, 4, 5, 6, 8, 12}); }
  Sizes shape(std::int64_t least, std::int64_t most) {
    Sizes sizes(static_cast<std::size_t>(between(least, most)));
    for (std::int64_t& size : sizes) size = length();
    return sizes;
  }

  /// A leaf of this shape that is whole.
  Tensor whole(const Sizes& sizes, double low = -2, double high = 2) {
    Tensor values = at::empty(sizes, at::kDouble);
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      values.data_ptr<double>()[i] = low + (high - low) * static_cast<double>(random_()) / 4294967296.0;
    }
    leaves.push_back(values.requires_grad_());
    return leaves.back();
  }
  /// The same, cut in a dimension; negative: any. `blocks` and `granule` 0: any.
  Tensor cut(const Sizes& sizes, std::int64_t dim = -1, std::int64_t blocks = 0, std::int64_t granule = 0) {
    const Tensor values = whole(sizes);
    const std::int64_t drawn_dim = below(static_cast<std::int64_t>(sizes.size()));
    if (dim < 0) dim = drawn_dim;
    return cut_as(values, dim, blocks, granule);
  }
  Tensor cut_as(const Tensor& values, std::int64_t dim, std::int64_t blocks = 0, std::int64_t granule = 0) {
    const std::int64_t size = values.size(dim);
    const std::int64_t drawn_blocks = one_of<std::int64_t>({1, 1, 2, 3});
    const std::int64_t drawn_granule = one_of<std::int64_t>({1, 1, 2, 3});
    if (blocks == 0) blocks = size % drawn_blocks == 0 ? drawn_blocks : 1;
    if (granule == 0) granule = drawn_granule;
    if (!axis_) return values;
    const CutDataPtr data = make_cut(axis_, Placement::shard(dim, blocks, granule), size, axis_->parameter("test"));
    return wrap(take_part_of(values, data), data);
  }
  /// Whole or cut, as chance will have it.
  Tensor any(const Sizes& sizes) {
    const bool is_cut = coin();
    return is_cut && !sizes.empty() ? cut(sizes) : whole(sizes);
  }
  Tensor indices(const Sizes& sizes, std::int64_t limit) {
    Tensor values = at::empty(sizes, at::kLong);
    for (std::int64_t i = 0; i < values.numel(); ++i) values.data_ptr<std::int64_t>()[i] = below(limit);
    return values;
  }
  /// A tensor that is not differentiated, on every rank.
  Tensor mask(const Sizes& sizes) { return indices(sizes, 2).to(at::kBool); }

  const std::shared_ptr<TensorAxis>& axis() const { return axis_; }

  std::vector<Tensor> leaves;

 private:
  std::mt19937 random_;
  std::shared_ptr<TensorAxis> axis_;  // null: everything is whole
};

using Outputs = std::vector<Tensor>;
using Body = std::function<Outputs(Program&)>;

/// Sizes that broadcast with these.
Sizes broadcast_with(Program& p, const Sizes& sizes) {
  Sizes result = sizes;
  for (std::int64_t& size : result) {
    if (p.below(4) == 0) size = 1;
  }
  result.erase(result.begin(), result.begin() + p.below(static_cast<std::int64_t>(result.size())));
  return result;
}

/// Another shape with as many elements.
Sizes refactored(Program& p, const Sizes& sizes) {
  Sizes result;
  const std::int64_t kind = p.below(3);
  if (kind == 0) {  // joins neighbours
    for (const std::int64_t size : sizes) {
      if (!result.empty() && p.coin()) {
        result.back() *= size;
      } else {
        result.push_back(size);
      }
    }
  } else if (kind == 1) {  // splits sizes
    for (const std::int64_t size : sizes) {
      std::int64_t first = p.between(1, 4);
      if (size % first != 0) first = 1;
      if (p.coin()) {
        result.push_back(first);
        result.push_back(size / first);
      } else {
        result.push_back(size / first);
        result.push_back(first);
      }
    }
  } else {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    for (const std::int64_t size : {2, 3, 4, 5}) {
      if (count % size == 0 && p.coin()) result.push_back(size), count /= size;
    }
    result.push_back(count);
    if (p.coin()) std::ranges::reverse(result);
  }
  return result;
}

const std::vector<std::pair<std::string, Body>>& bodies() {
  using Pair = std::pair<std::string, Body>;
  using Unary = std::function<Tensor(const Tensor&)>;
  static const std::vector<Pair> all = [] {
    std::vector<Pair> list;
    const std::vector<Unary> unary{[](const Tensor& x) { return at::gelu(x, "tanh"); },
                                   [](const Tensor& x) { return at::relu(x); },
                                   [](const Tensor& x) { return at::silu(x); },
                                   [](const Tensor& x) { return at::tanh(x); },
                                   [](const Tensor& x) { return at::exp(x); },
                                   [](const Tensor& x) { return -x; },
                                   [](const Tensor& x) { return x.clone().mul_(3); },
                                   [](const Tensor& x) { return x.pow(2); },
                                   [](const Tensor& x) { return (x * x + 1).sqrt(); },
                                   [](const Tensor& x) { return x.clamp(-1, 1); },
                                   [](const Tensor& x) { return x.contiguous(); },
                                   [](const Tensor& x) { return x.to(at::kFloat).to(at::kDouble); },
                                   [](const Tensor& x) { return at::leaky_relu(x); },
                                   [](const Tensor& x) { return at::sigmoid(x) / 3 + 1; },
                                   [](const Tensor& x) { return 2 - x; },
                                   [](const Tensor& x) { return at::zeros_like(x) + x; }};
    list.emplace_back("unary", [unary](Program& p) -> Outputs {
      const Tensor x = p.cut(p.shape(1, 4));
      return {p.one_of(unary)(x)};
    });
    using Binary = std::function<Tensor(const Tensor&, const Tensor&)>;
    const std::vector<Binary> binary{[](const Tensor& x, const Tensor& y) { return x + y; },
                                     [](const Tensor& x, const Tensor& y) { return x * y; },
                                     [](const Tensor& x, const Tensor& y) { return x - 2 * y; },
                                     [](const Tensor& x, const Tensor& y) { return x / (y * y + 1); },
                                     [](const Tensor& x, const Tensor& y) { return at::maximum(x, y); },
                                     [](const Tensor& x, const Tensor& y) { return at::lerp(x, y, 0.3); },
                                     [](const Tensor& x, const Tensor& y) { return at::where(x > y, x, y * 2); }};
    list.emplace_back("binary", [binary](Program& p) -> Outputs {
      const Sizes sizes = p.shape(1, 4);
      const Tensor x = p.cut(sizes);
      const Tensor y = p.any(p.coin() ? sizes : broadcast_with(p, sizes));
      const Binary op = p.one_of(binary);
      const bool swaps = p.coin();
      return {swaps ? op(y, x) : op(x, y)};
    });
    list.emplace_back("order in memory", [](Program& p) -> Outputs {
      Sizes sizes(static_cast<std::size_t>(p.between(2, 4)));
      for (std::int64_t& size : sizes) size = p.between(2, 8);
      // Arguments whose memory lies in any order, some broadcast along dimensions that others have.
      const auto argument = [&](Sizes wanted) {
        Sizes order(wanted.size());
        std::iota(order.begin(), order.end(), 0);
        for (std::size_t i = order.size(); i > 1; --i) {
          std::swap(order[i - 1], order[static_cast<std::size_t>(p.below(static_cast<std::int64_t>(i)))]);
        }
        Sizes stored(wanted.size());
        for (std::size_t i = 0; i < order.size(); ++i) stored[static_cast<std::size_t>(order[i])] = wanted[i];
        return p.any(stored).permute(order).clone();
      };
      const Tensor first = argument(p.coin() ? sizes : broadcast_with(p, sizes));
      const Tensor second = argument(sizes);
      const Tensor third = argument(p.coin() ? sizes : broadcast_with(p, sizes));
      const std::vector<std::function<Tensor()>> ops{[&] { return at::addcmul(first, second, third); },
                                                     [&] { return first * second; }, [&] { return second + third; },
                                                     [&] { return at::where(first > 0, second, third); }};
      Tensor result = p.one_of(ops)();
      if (p.coin()) result = result.clone();
      Tensor strides = at::zeros({result.dim()}, at::kDouble);
      for (std::int64_t i = 0; i < result.dim(); ++i) {
        if (result.size(i) > 1) strides[i] = result.stride(i);
      }
      const Tensor flat = result.is_contiguous() ? result.view(-1) : result.flatten();
      return {result, flat, strides};
    });
    list.emplace_back("in place", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(1, 3);
      const Tensor x = p.any(sizes) * 1;
      const Tensor y = p.any(p.coin() ? sizes : broadcast_with(p, sizes));
      const Tensor before = x * 2;
      switch (p.below(4)) {
        case 0:
          x.add_(y);
          break;
        case 1:
          x.mul_(y);
          break;
        case 2:
          x.copy_(y.expand(sizes));
          break;
        default:
          x.masked_fill_(p.mask(sizes), 0.5);
      }
      return {x, before};
    });
    list.emplace_back("in place through a view", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(2, 3);
      const std::int64_t dim = p.below(static_cast<std::int64_t>(sizes.size()));
      const Tensor x = p.cut(sizes, dim) * 1;
      const std::int64_t other = (dim + 1) % static_cast<std::int64_t>(sizes.size());
      Tensor view = x;
      if (p.coin()) {
        view = view.transpose(dim, other);
      } else {
        view = view.narrow(other, 0, p.between(1, sizes[static_cast<std::size_t>(other)]));
      }
      view.mul_(3).add_(1);
      return {x * 2, view};
    });
    list.emplace_back("view", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(1, 4);
      const Tensor x = p.cut(sizes) * 1;
      const Sizes other = refactored(p, sizes);
      return {p.coin() ? x.view(other) : x.reshape(other)};
    });
    list.emplace_back("views of views", [](Program& p) -> Outputs {
      const std::int64_t b = p.length(), t = p.length(), h = p.length(), d = p.between(1, 3);
      const Tensor x = p.cut({b, t, 3 * h * d}, 2, 3, d);
      const auto parts = p.coin() ? x.chunk(3, -1) : x.split(h * d, 2);
      const auto heads = [&](const Tensor& part) { return part.reshape({b, t, h, d}).transpose(1, 2); };
      const Tensor scores = heads(parts[0]).matmul(heads(parts[1]).transpose(-2, -1)).softmax(-1);
      return {scores.matmul(heads(parts[2])).transpose(1, 2).reshape({b, t, h * d}), parts[1]};
    });
    list.emplace_back("dimensions", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(2, 4);
      const auto num_dims = static_cast<std::int64_t>(sizes.size());
      const Tensor x = p.cut(sizes) * 1;
      const std::int64_t a = p.below(num_dims), b = p.below(num_dims);
      const std::int64_t size = sizes[static_cast<std::size_t>(a)];
      Sizes order(sizes.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::rotate(order, order.begin() + b);
      switch (p.below(13)) {
        case 0:
          return {x.transpose(a, b)};
        case 1:
          return {x.permute(order)};
        case 2:
          return {x.unsqueeze(p.below(num_dims + 1))};
        case 3:
          return {x.squeeze()};
        case 4:
          return {x.squeeze(a)};
        case 5: {
          Sizes larger = sizes;
          larger.insert(larger.begin(), 2);
          return {x.expand(larger)};
        }
        case 6:
          return {x.select(a, p.below(size))};
        case 7: {
          const std::int64_t start = p.below(size);
          return {x.slice(a, p.coin() ? 0 : start, p.between(start + 1, size))};
        }
        case 8: {
          const std::int64_t start = p.below(size);
          return {x.narrow(a, start, p.between(1, size - start))};
        }
        case 9:
          return x.chunk(p.between(1, 3), a);
        case 10:
          return x.split(p.between(1, size), a);
        case 11:
          return x.unbind(a);
        default:
          return {x.flatten(std::min(a, b), std::max(a, b)), x.unflatten(a, {1, size})};
      }
    });
    list.emplace_back("matmul", [](Program& p) -> Outputs {
      Sizes batch = p.coin() ? p.shape(0, 2) : Sizes{};
      Sizes other_batch = p.coin() ? batch : Sizes{};
      const std::int64_t m = p.length(), k = p.length(), n = p.length();
      Sizes left = batch, right = other_batch;
      left.insert(left.end(), {m, k});
      right.insert(right.end(), {k, n});
      const Tensor a = p.any(left);
      const Tensor b = p.any(right);
      return {a.matmul(b)};
    });
    list.emplace_back("matmul of like cuts", [](Program& p) -> Outputs {
      const std::int64_t m = p.length(), k = p.length(), n = p.length(), granule = p.between(1, 3);
      const std::int64_t blocks = k % 2 == 0 && p.coin() ? 2 : 1;
      return {p.cut({m, k}, 1, blocks, granule).matmul(p.cut({k, n}, 0, blocks, granule))};
    });
    list.emplace_back("batches of products", [](Program& p) -> Outputs {
      const std::int64_t b = p.length(), m = p.length(), k = p.length(), n = p.length(), granule = p.between(1, 2);
      const Tensor x = p.cut({b, m, k}, 0, 1, granule);
      const Tensor y = p.cut({b, k, n}, 0, 1, granule);
      if (p.coin()) return {x.bmm(y)};
      return {at::baddbmm(p.any({b, m, n}), x, y, 0.5, 2)};
    });
    list.emplace_back("linear", [](Program& p) -> Outputs {
      Sizes sizes = p.shape(1, 2);
      const std::int64_t in = p.length(), out = p.length();
      sizes.push_back(in);
      const Tensor x = p.any(sizes);
      const Tensor weight = p.any({out, in});
      if (p.coin()) return {at::linear(x, weight)};
      return {at::linear(x, weight, p.any({out}))};
    });
    list.emplace_back("addmm", [](Program& p) -> Outputs {
      const std::int64_t m = p.length(), k = p.length(), n = p.length();
      const Tensor bias = p.any(p.coin() ? Sizes{n} : Sizes{m, n});
      const Tensor a = p.any({m, k});
      const Tensor b = p.any({k, n});
      return {p.coin() ? at::addmm(bias, a, b) : at::addmm(bias, a, b, 0.5, -2)};
    });
    list.emplace_back("attention", [](Program& p) -> Outputs {
      const std::int64_t b = p.length(), h = p.length(), t = p.length(), s = p.length(), d = p.between(1, 4);
      const std::int64_t dim = p.below(2), granule = p.between(1, 2);
      const Tensor q = p.cut({b, h, t, d}, dim, 1, granule);
      const Tensor k = p.coin() ? p.cut({b, h, s, d}, dim, 1, granule) : p.any({b, h, s, d});
      const Tensor v = p.cut({b, h, s, d}, dim, 1, granule);
      const std::int64_t masks = p.below(3);
      std::optional<Tensor> mask;
      if (masks == 1) mask = p.any(p.coin() ? Sizes{t, s} : Sizes{b, 1, t, s});
      if (masks == 2) mask = at::ones({t, s}, at::kBool).tril(s - 1);
      return {at::scaled_dot_product_attention(q, k, v, mask, 0.0, masks == 0 && t == s)};
    });
    list.emplace_back("grouped attention", [](Program& p) -> Outputs {
      const std::int64_t b = p.between(1, 2), groups = p.between(1, 4), each = p.between(1, 3), t = p.length(), d = 2;
      const Tensor q = p.cut({b, groups * each, t, d}, 1, 1, p.coin() ? each : 1);
      const Tensor k = p.cut({b, groups, t, d}, 1, 1, 1);
      const Tensor v = p.cut({b, groups, t, d}, 1, 1, 1);
      return {at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, {}, true)};
    });
    list.emplace_back("softmax", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(1, 3);
      const Tensor x = p.cut(sizes);
      const std::int64_t dim = p.below(static_cast<std::int64_t>(sizes.size()));
      return {p.coin() ? x.softmax(dim) : x.log_softmax(dim - static_cast<std::int64_t>(sizes.size()))};
    });
    list.emplace_back("loss of classes", [](Program& p) -> Outputs {
      const std::int64_t n = p.length(), classes = p.length(), extra = p.between(1, 3);
      const bool has_extra = p.coin();
      const Tensor x = p.cut(has_extra ? Sizes{n, classes, extra} : Sizes{n, classes});
      const Tensor target = p.indices(has_extra ? Sizes{n, extra} : Sizes{n}, classes);
      if (p.coin()) target.view({-1})[0] = -100;
      const std::int64_t reduction = p.coin() && n * (has_extra ? extra : 1) > 1 ? at::Reduction::Mean
                                     : p.coin()                                  ? at::Reduction::Sum
                                                                                 : at::Reduction::None;
      switch (p.below(4)) {
        case 0:
          return {at::cross_entropy_loss(x, target, p.whole({classes}, 0.5, 1).detach(), reduction)};
        case 1:
          return {at::cross_entropy_loss(x, target, {}, reduction, -100, 0.1)};
        case 2:
          return {at::nll_loss_nd(x.log_softmax(1), target, {}, reduction)};
        default:
          return {at::cross_entropy_loss(x, target, {}, reduction)};
      }
    });
    list.emplace_back("layer norm", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(2, 3);
      const Tensor x = p.any(sizes);
      const Sizes last{sizes.back()};
      const Tensor weight = p.any(last), bias = p.any(last);
      const std::int64_t kind = p.below(3);
      if (kind == 0) return {at::layer_norm(x, last)};
      return {at::layer_norm(x, last, weight, kind == 1 ? Tensor() : bias)};
    });
    list.emplace_back("group norm", [](Program& p) -> Outputs {
      const std::int64_t groups = p.between(1, 3);
      const std::int64_t channels = groups * p.between(1, 3);
      const Tensor x = p.cut({p.between(1, 4), channels, 4});
      return {at::group_norm(x, groups, p.any({channels}), p.any({channels}))};
    });
    list.emplace_back("batch norm", [](Program& p) -> Outputs {
      const std::int64_t n = p.between(2, 4), channels = p.length(), granule = p.between(1, 2);
      const bool is_cut = p.coin();
      const auto of_channels = [&](double low) {
        const Tensor whole = p.whole({channels}, low, 2);
        return is_cut ? p.cut_as(whole, 0, 1, granule) : whole;
      };
      const Tensor x = p.coin() ? p.cut({n, channels, 3}, 1, 1, granule) : p.any({n, channels, 3});
      const Tensor weight = of_channels(-2), bias = of_channels(-2);
      const Tensor mean = of_channels(-1).detach(), variance = of_channels(0.5).detach();
      const bool trains = p.coin();
      const Tensor y = at::batch_norm(x, weight, bias, mean, variance, trains, 0.1, 1e-5, false);
      return {y, mean, variance};
    });
    list.emplace_back("sum", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(1, 4);
      const Tensor x = p.cut(sizes);
      Sizes dims;
      for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
        if (p.coin()) dims.push_back(p.coin() ? d : d - static_cast<std::int64_t>(sizes.size()));
      }
      if (dims.empty()) return {p.coin() ? x.sum() : x.mean()};
      const bool keeps = p.coin();
      return {p.coin() ? x.sum(dims, keeps) : x.mean(dims, keeps)};
    });
    list.emplace_back("reductions", [](Program& p) -> Outputs {
      const Sizes sizes = p.shape(1, 3);
      const Tensor x = p.cut(sizes);
      const std::int64_t dim = p.below(static_cast<std::int64_t>(sizes.size()));
      const bool keeps = p.coin();
      switch (p.below(8)) {
        case 0:
          return {x.amax(dim, keeps)};
        case 1:
          return {std::get<0>(x.max(dim, keeps))};
        case 2:
          return {x.logsumexp(dim, keeps)};
        case 3:
          return {x.cumsum(dim)};
        case 4:
          return {std::get<0>(x.sort(dim))};
        case 5:
          return {x.detach().norm(), x.detach().norm(1)};
        case 6:
          return {x.prod(dim, keeps)};
        default:
          return {x.max(), x.norm()};
      }
    });
    list.emplace_back("embedding", [](Program& p) -> Outputs {
      const std::int64_t rows = p.length() + 1, width = p.length();
      const Tensor weight = p.cut({rows, width}, -1, p.coin() ? 1 : 0);
      const Tensor indices = p.indices(p.shape(0, 2), rows);
      return {at::embedding(weight, indices, p.coin() ? p.below(rows) : -1)};
    });
    list.emplace_back("convolution", [](Program& p) -> Outputs {
      const std::int64_t n = p.between(1, 3), in = p.length(), out = p.length(), granule = p.between(1, 2);
      const bool is_unbatched = p.below(4) == 0;
      const Sizes sizes = is_unbatched ? Sizes{in, 4, 4} : Sizes{n, in, 4, 4};
      const Tensor x = p.coin() ? p.cut(sizes, is_unbatched ? 0 : 1, 1, granule) : p.any(sizes);
      const Tensor weight = p.coin() ? p.cut({out, in, 3, 3}, p.below(2), 1, granule) : p.any({out, in, 3, 3});
      const Tensor y = p.coin() ? at::conv2d(x, weight, p.any({out}), 1, 1) : at::conv2d(x, weight, {}, 1, 1);
      const bool pools = p.coin();
      return {pools ? at::max_pool2d(y, 2) : at::adaptive_avg_pool2d(y, {2, 2})};
    });
    list.emplace_back("convolution of a cut batch", [](Program& p) -> Outputs {
      const std::int64_t in = p.length(), out = p.length();
      const Tensor x = p.cut({p.between(4, 6), in, 4, 4}, 0, 1, 1);
      const Tensor weight = p.whole({out, in, 3, 3});
      return {p.coin() ? at::conv2d(x, weight, p.whole({out}), 1, 1) : at::conv2d(x, weight, {}, 1, 1)};
    });
    list.emplace_back("joined", [](Program& p) -> Outputs {
      Sizes sizes = p.shape(1, 3);
      const std::int64_t dim = p.below(static_cast<std::int64_t>(sizes.size()));
      const Tensor x = p.cut(sizes);
      const bool stacks = p.coin();
      if (!stacks) sizes[static_cast<std::size_t>(dim)] = p.length();
      const Tensor y = p.any(sizes);
      if (stacks) return {at::stack({x, y}, p.below(static_cast<std::int64_t>(sizes.size()) + 1))};
      return {at::cat({x, y}, dim), x.index_select(dim, p.indices({3}, x.size(dim)))};
    });
    list.emplace_back("without a rule", [](Program& p) -> Outputs {
      const std::int64_t m = p.length(), n = p.length();
      const Tensor x = p.cut({m, n});
      switch (p.below(5)) {
        case 0:
          return {at::einsum("ij,kj->ik", {x, p.any({3, n})})};
        case 1:
          return {x.index({p.indices({4}, m)}), x.roll(1, 0)};
        case 2:
          return {x.mv(p.any({n}))};
        case 3: {
          const Tensor y = x * 1;
          y.index_fill_(0, p.indices({1}, m), 3);
          return {y};
        }
        default:
          return {x.t().diagonal() * 2, x.tril(), x.flip(0)};
      }
    });
    return list;
  }();
  return all;
}

struct Result {
  Outputs outputs;
  std::vector<Tensor> gradients;
};

/// Runs a case, with everything whole or cut for an axis. Gradients are of a random combination of the outputs.
Result run(const Body& body, unsigned seed, const std::shared_ptr<TensorAxis>& axis) {
  Program program(seed, axis);
  Result result;
  Tensor loss = at::zeros({}, at::kDouble);
  double phase = 1;
  for (const Tensor& output : body(program)) {
    const Tensor whole = whole_of(output) * 1;
    result.outputs.push_back(whole.detach());
    if (!whole.requires_grad()) continue;
    const Tensor weights = at::sin(at::arange(whole.numel(), at::kDouble) * 0.7 + ++phase).view(whole.sizes());
    loss = loss + (whole * weights).sum();
  }
  if (loss.requires_grad()) {
    result.gradients = torch::autograd::grad({loss}, program.leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  }
  return result;
}

void require_close(const Tensor& found, const Tensor& expected, const std::string& what) {
  require_equal(found.defined(), expected.defined(), what + ": is there");
  if (!expected.defined()) return;
  require_equal(found.sizes().vec(), expected.sizes().vec(), what + ": shape");
  if (expected.numel() == 0) return;
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double difference = (found - expected).abs().max().item<double>();
  require(difference <= 1e-11 * scale || (std::isnan(difference) && at::equal(found.isnan(), expected.isnan())),
          what + " differs by " + std::to_string(difference));
}

int num_cases() {
  const char* const wanted = std::getenv("TESSERA_RULE_CASES");
  return wanted ? std::stoi(wanted) : 200;
}

class TensorRules : public ::testing::TestWithParam<std::size_t> {};

TEST_P(TensorRules, ComputeWhatWholeTensorsWould) {
  const std::string& name = bodies()[GetParam()].first;
  const Body& body = bodies()[GetParam()].second;
  for (const int num_ranks : {2, 3, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto axis = std::make_shared<TensorAxis>(world.comm(), false);
      for (int i = 0; i < num_cases(); ++i) {
        const auto seed = static_cast<unsigned>(i * 7919 + num_ranks);
        const std::string what = name + ", seed " + std::to_string(seed) + ", " + std::to_string(num_ranks) + " ranks";
        const Result expected = run(body, seed, nullptr);
        Result found;
        try {
          found = run(body, seed, axis);
        } catch (const std::exception& error) {
          throw std::runtime_error(what + ": " + error.what());
        }
        for (std::size_t j = 0; j < expected.outputs.size(); ++j) {
          require_close(found.outputs[j], expected.outputs[j], what + ", output " + std::to_string(j));
        }
        require_equal(found.gradients.size(), expected.gradients.size(), what + ": gradients");
        for (std::size_t j = 0; j < expected.gradients.size(); ++j) {
          require_close(found.gradients[j], expected.gradients[j], what + ", gradient " + std::to_string(j));
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, TensorRules, ::testing::Range(std::size_t{0}, bodies().size()), [](const auto& test) {
  std::string name = bodies()[test.param].first;
  std::ranges::replace(name, ' ', '_');
  return name;
});

}  // namespace
}  // namespace tessera::tp
