#pragma once

#include <tessera/intercept/operator_call.h>

namespace tessera::tp {

/// Null: the operator has none, and gather_and_run() will do.
intercept::RuleTable::Rule find_rule(const c10::OperatorHandle& op);

/// Without a rule: every argument is gathered, the operator runs on whole tensors, and its result is whole. What it
/// writes is cut again. Right for every operator; the report names it. Throws ConfigError in strict mode.
void gather_and_run(intercept::OperatorCall& call);

/// The same for a rule that does not cover these arguments.
inline void without_rule(intercept::OperatorCall& call) { gather_and_run(call); }

// Each adds the rules of one file.
void add_pointwise_rules(intercept::RuleTable& table);
void add_view_rules(intercept::RuleTable& table);
void add_product_rules(intercept::RuleTable& table);
void add_attention_rules(intercept::RuleTable& table);
void add_normalisation_rules(intercept::RuleTable& table);
void add_reduction_rules(intercept::RuleTable& table);
void add_embedding_rules(intercept::RuleTable& table);
void add_convolution_rules(intercept::RuleTable& table);
void add_copy_rules(intercept::RuleTable& table);
void add_random_rules(intercept::RuleTable& table);

}  // namespace tessera::tp
