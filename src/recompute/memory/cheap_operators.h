#pragma once

#include <tessera/intercept/operator_trace.h>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <utility>

namespace tessera::recomputation {

/// Whether running the operator again takes little time beside a product of matrices: activation functions, norms,
/// softmax, dropout, arithmetic of elements, copies.
bool is_cheap(const intercept::TracedOperator& op);
/// Whether its mask does not depend on the numbers that it takes.
bool is_dropout(const intercept::TracedOperator& op);

/// Note [What can be replayed]
/// An operator is replayed only if what it gives has a history, so that nobody but operators may have written to it:
/// masks that a program fills through a pointer, results of a custom function's forward, and what a collective writes
/// have none, and enter from outside. Nor is an operator replayed that takes a generator of the program's own, that
/// runs under NoGradGuard, or that changes a tensor from outside.
bool may_be_replayed(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments);

/// Running statistics, which a norm changes though its schema does not say so: where they are among the arguments, from
/// the first to behind the last. A second run must not change them again, and gets copies.
std::pair<std::size_t, std::size_t> running_statistics(const intercept::TracedOperator& op,
                                                       c10::ArrayRef<c10::IValue> arguments);

}  // namespace tessera::recomputation
