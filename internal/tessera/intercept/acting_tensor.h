#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <string>

namespace tessera::intercept {

class OperatorCall;
class ActingData;
using ActingDataPtr = c10::intrusive_ptr<ActingData>;

/// Note [Tensors that act]
/// A watch sees operators but cannot change them. A tensor that acts can: LibTorch's dispatcher passes every operator
/// that takes one to its kind, which decides what is computed instead. Autocast, autograd and the kernels come below:
/// they see the tensors that the kind passes on. Tensors that do not act pay nothing.
///
/// There are two forms. A wrapper (`make_acting`) stands for another tensor: it has sizes of its own and no bytes. A
/// marked tensor (`mark_acting`) is a parameter that stays what it is, with its bytes, its place in autograd and all
/// handles to it. Several kinds may mark it, one over another. It may hold only a part (`mark_part`): it then has the
/// sizes of the whole, and a tensor of its own for the bytes. Which dispatch key this takes, and what it means for the
/// rest of LibTorch: docs/decisions/0018.
///
/// A kind of tensors that act. Lives as long as the process.
class ActingKind {
 public:
  virtual ~ActingKind() = default;
  virtual std::string name() const = 0;
  /// Where an operator takes tensors of several kinds, that with the greatest level is asked. Its tensors may hold
  /// tensors of lower levels, never the other way round.
  virtual int level() const = 0;
  /// Runs an operator that takes at least one tensor of this kind.
  virtual void call(OperatorCall& call) const = 0;

  /// A gradient of a wrapper with `data`, as one of its inner tensor. It has the wrapper's sizes, and acts or does not.
  virtual at::Tensor inner_gradient(const at::Tensor& gradient, const ActingData& data) const = 0;
  /// The reverse: a gradient of the inner tensor, as one of the wrapper.
  virtual at::Tensor outer_gradient(const at::Tensor& gradient, const ActingDataPtr& data) const = 0;
  /// Whether the history of such a wrapper is on this process. If it is not, the program's hooks on it are called where
  /// it is, and a custom function that gave it is not run here: the history of its inner tensor is all there is.
  virtual bool has_history(const ActingData& data) const {
    static_cast<void>(data);
    return true;
  }
  /// Whether wrappers never pass for contiguous, so that contiguous() is an operator, whatever memory a tensor has.
  virtual bool hides_contiguity() const { return false; }
  /// A wrapper of this kind as a tensor that does not act, with its history. May communicate. Called by kinds of
  /// greater levels. Throws InternalError where there is no such tensor.
  virtual at::Tensor plain(const at::Tensor& wrapper) const;
  /// Whether this process has nothing of a tensor that was marked with `data`: all of it is on another one.
  virtual bool is_elsewhere(const ActingData& data) const {
    static_cast<void>(data);
    return false;
  }
  /// Throws ConfigError when the program may put no hook on such a wrapper.
  virtual void require_hookable(const ActingData& data) const { static_cast<void>(data); }
};

/// What a kind knows about one of its tensors, such as how it is cut. Not changed once made: tensors share it.
class ActingData : public c10::intrusive_ptr_target {
 public:
  explicit ActingData(const ActingKind& kind) : kind_(kind) {}
  const ActingKind& kind() const { return kind_; }

 private:
  const ActingKind& kind_;
};

/// A wrapper of `inner` with these sizes and strides. Differentiable: gradients of the wrapper become those of `inner`.
at::Tensor make_acting(at::Tensor inner, ActingDataPtr data, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Makes this very tensor act. Every handle to it sees that; so do its `detach()` and copies of its metadata. If
/// another kind has marked it before, this one is asked first, and computes with a tensor that is marked as it was.
/// Requires: no wrapper.
void mark_acting(const at::Tensor& tensor, ActingDataPtr data);
/// The same for a tensor that is to hold a part only: `part` has its bytes from now on, and these are its sizes and
/// strides. Reading its memory throws. Its gradients are marked in the same way.
void mark_part(const at::Tensor& tensor, at::Tensor part, ActingDataPtr data, at::IntArrayRef sizes,
               at::IntArrayRef strides);
/// A new tensor that is marked so.
at::Tensor make_part(at::Tensor part, ActingDataPtr data, at::IntArrayRef sizes, at::IntArrayRef strides);
/// Takes the mark away that came last. Requires: that mark is none of a part.
void unmark_acting(const at::Tensor& tensor);
/// The same for one that holds a part: `whole` has its bytes from now on. If another kind had marked it before as a
/// part, `whole` is that part.
void unmark_part(const at::Tensor& tensor, const at::Tensor& whole);
/// The tensor with the bytes: what a wrapper holds, the part of a tensor that was marked so, any other tensor itself.
/// Without a history.
at::Tensor held_part(const at::Tensor& tensor);
/// Its sizes. Valid as long as the tensor is what it is.
at::IntArrayRef held_sizes(const at::Tensor& tensor);
/// Whether it was marked by mark_part() or make_part().
bool holds_part(const at::Tensor& tensor);
/// A gradient of such a tensor, as one of its part: shares memory with it, unless it is a whole one, as a program may
/// set it. Undefined stays undefined. A gradient of any other tensor stays what it is.
at::Tensor gradient_part(const at::Tensor& tensor, const at::Tensor& gradient);
/// The reverse: the gradient has these bytes from now on.
void set_gradient_part(const at::Tensor& tensor, at::Tensor part);

/// Null for a tensor that does not act.
ActingDataPtr acting_data(const at::Tensor& tensor);
/// Of the kind that had marked it before the outermost one did; null: there was none.
ActingDataPtr acting_data_below(const at::Tensor& tensor);
/// The same, if it is of this kind.
ActingDataPtr acting_data(const at::Tensor& tensor, const ActingKind& kind);
bool is_wrapper(const at::Tensor& tensor);
/// Whether its kind says that all of it is on another process. A module lists such parameters too.
bool is_elsewhere(const at::Tensor& tensor);
/// Whether it is a wrapper that was made a leaf, or that a custom function gave.
bool has_own_history(const at::Tensor& tensor);

/// The tensor with the memory that a tensor stands for, through all kinds: without an operator. Undefined: there is
/// none, or it is not known.
at::Tensor innermost(const at::Tensor& tensor);
/// `tensor`, or what its kind says it is as a tensor that does not act: ActingKind::plain().
at::Tensor plain_of(const at::Tensor& tensor);
/// The tensor to compute with: what a wrapper holds, or an alias of a marked tensor that does not act. Gradients of the
/// result reach the acting tensor, whatever has become of it since (made a leaf, returned by a custom function).
at::Tensor inner_of(const at::Tensor& acting);
/// The same for an operator that writes. Throws LibTorch's error for a leaf that requires a gradient.
at::Tensor inner_for_write(const at::Tensor& acting);
/// After an operator has written to the inner tensor of a wrapper, or replaced it: what the wrapper is now.
void set_inner(const at::Tensor& wrapper, at::Tensor inner, at::IntArrayRef sizes, at::IntArrayRef strides);
/// After an operator that changes the shape of a wrapper in place: it is from now on what `changed` is, another
/// wrapper. Requires: no leaf that requires a gradient.
void become(const at::Tensor& wrapper, const at::Tensor& changed);

}  // namespace tessera::intercept
