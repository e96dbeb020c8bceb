// Programs that once had a defect, as tests/property/programs printed them.
#include <gtest/gtest.h>

#include "property/play.h"

namespace tessera::testing {
namespace {

void expect_no_defect(const Program& program) {
  const Played played = play_with_threads(program);
  EXPECT_EQ(played.defect, "") << program.text();
}

TEST(Programs, Seed16) {
  Program program{16,
                  Config::parse("fsdp, num_ranks 2, wrap_elements 93, strategy zero1, min_num_params 10, "
                                "backward_prefetch none, forward_prefetch false, use_orig_params true, "
                                "shared_copy false"),
                  {}};
  program.actions = {
      {"open_gather", 452, 919}, {"make_optimizer", 475, 634}, {"go_back_twice", 302, 67},
      {"step", 849, 747},        {"train", 152, 225},
  };
  expect_no_defect(program);
}

/// What a cast or torch::load left without hooks was not averaged: gradients of one rank, without a word.
TEST(Programs, Seed44) {
  expect_no_defect({44,
                    Config::parse("ddp, num_ranks 2, bucket_bytes 64, find_unused_parameters true"),
                    {{"cast", 197, 640}, {"train", 534, 301}, {"write", 803, 324}}});
}

/// The same of parameters that stay whole in a sharded model.
TEST(Programs, Seed46) {
  expect_no_defect({46,
                    Config::parse("fsdp, num_ranks 4, wrap_elements 6, min_num_params 40, forward_prefetch false, "
                                  "shared_copy false"),
                    {{"load_saved", 366, 262}, {"train_with_autocast", 814, 952}}});
}

/// After a backward that failed, the same.
TEST(Programs, Seed98) {
  expect_no_defect({98,
                    Config::parse("ddp, num_ranks 2, bucket_bytes 400, first_bucket_bytes 64, delay_all_reduce true, "
                                  "init_sync false"),
                    {{"fail_in_backward", 235, 820}, {"load_saved", 611, 272}, {"train", 220, 795}}});
}

/// What was unfrozen after a log line was not averaged.
TEST(Programs, Seed54) {
  expect_no_defect({54,
                    Config::parse("fsdp, num_ranks 2, wrap_elements 33, strategy no_shard, min_num_params 10, "
                                  "limit_all_gathers false, use_orig_params true, shared_copy false"),
                    {{"train", 22, 342}, {"swap_frozen", 477, 984}, {"train", 601, 385}, {"close_gather", 48, 755}}});
}

TEST(Programs, Seed755) {
  expect_no_defect({755,
                    Config::parse("ddp, num_ranks 2, hook, bucket_bytes 400, first_bucket_bytes 64, "
                                  "find_unused_parameters true"),
                    {{"swap_frozen", 238, 214},
                     {"ask_for_slopes", 343, 594},
                     {"swap_frozen", 150, 571},
                     {"step_with_scaler", 737, 277}}});
}

/// Nothing left to train: the next forward crashed.
TEST(Programs, Seed60) {
  expect_no_defect({60,
                    Config::parse("ddp, num_ranks 2, wrapped, bucket_bytes 400, first_bucket_bytes 64, "
                                  "find_unused_parameters true"),
                    {{"swap_frozen", 39, 567}, {"train", 596, 396}, {"train", 805, 604}}});
}

/// Weights of one unit in another's memory, which both had.
TEST(Programs, Seed137) {
  expect_no_defect({137,
                    Config::parse("fsdp, num_ranks 2, wrap_elements 33, strategy zero1, min_num_params 10, "
                                  "limit_all_gathers false, broadcast_buffers false, shared_copy false"),
                    {{"train", 970, 145},
                     {"write", 378, 938},
                     {"open_gather", 55, 687},
                     {"zero_grad", 783, 891},
                     {"use_a_view", 253, 84}}});
}

/// The explicit form: gradients that model->zero_grad() had cleared were used, and writes got lost.
TEST(Programs, Seed6) {
  expect_no_defect({6,
                    Config::parse("fsdp, num_ranks 2, wrap_elements 73, strategy shard_grad_op, "
                                  "min_num_params 0, backward_prefetch none, init_sync false"),
                    {{"train", 78, 883}, {"zero_grad", 68, 894}, {"step", 868, 917}, {"ask_for_slopes", 786, 717}}});
}

TEST(Programs, Seed414) {
  expect_no_defect({414,
                    Config::parse("fsdp, num_ranks 2, min_num_params 10, backward_prefetch none, "
                                  "shared_copy false, reproducible true, micro_batches 2"),
                    {{"open_gather", 145, 230}, {"write", 406, 786}, {"train_two_at_once", 534, 377}}});
}

/// What a forward had kept was older than the shards.
TEST(Programs, Seed805) {
  expect_no_defect({805,
                    Config::parse("fsdp, num_ranks 2, strategy shard_grad_op, min_num_params 0, "
                                  "backward_prefetch none, limit_all_gathers false"),
                    {{"train", 446, 186},
                     {"evaluate", 710, 382},
                     {"step", 937, 710},
                     {"open_gather", 92, 573},
                     {"train", 286, 690}}});
}

/// Refused on one rank, and another waited.
TEST(Programs, Seed743) {
  expect_no_defect({743,
                    Config::parse("fsdp, num_ranks 2, wrap_elements 40, strategy shard_grad_op, "
                                  "min_num_params 0, forward_prefetch false, use_orig_params true, shared_copy false, "
                                  "reproducible true, micro_batches 2"),
                    {{"train", 51, 487}, {"ask_for_slopes", 70, 375}}});
}

/// A rank without batches had other buckets.
TEST(Programs, Seed517) {
  expect_no_defect({517,
                    Config::parse("ddp, num_ranks 4, odd view, first_bucket_bytes 64, find_unused_parameters true"),
                    {{"resize_buckets", 380, 180},
                     {"fail_in_forward", 135, 321},
                     {"freeze", 446, 101},
                     {"cast", 304, 365},
                     {"train", 211, 636},
                     {"train_uneven", 434, 148}}});
}

/// A refusal hid that the pass before had failed.
TEST(Programs, Seed513) {
  expect_no_defect({513,
                    Config::parse("ddp, num_ranks 2, bucket_bytes 400, first_bucket_bytes 64, "
                                  "find_unused_parameters true, gradient_as_bucket_view false"),
                    {{"fail_in_backward", 986, 366},
                     {"swap_frozen", 35, 904},
                     {"train", 515, 777},
                     {"train_two_at_once", 938, 291}}});
}

/// Rank 0's buffers came after the model had computed with its own.
TEST(Programs, Seed5102) {
  expect_no_defect({5102,
                    Config::parse("ddp, num_ranks 4, bucket_bytes 64, find_unused_parameters true"),
                    {{"train", 121, 980}, {"fail_in_backward", 348, 709}}});
}

/// Unfrozen, and used by a function of autograd alone, so that no forward was seen and nothing averaged.
TEST(Programs, Seed20040) {
  expect_no_defect({20040,
                    Config::parse("ddp, num_ranks 4, find_unused_parameters true, gradient_as_bucket_view false, "
                                  "reproducible true, micro_batches 4"),
                    {{"swap_frozen", 318, 620}, {"accumulate", 893, 447}, {"evaluate_a_part", 400, 815}}});
}

/// Small parameters that torch::load or a cast had moved, used by a function of autograd alone: not averaged.
TEST(Programs, Seed20640) {
  expect_no_defect({20640,
                    Config::parse("fsdp, num_ranks 2, min_num_params 40, backward_prefetch post, "
                                  "limit_all_gathers false, use_orig_params true"),
                    {{"load_saved", 958, 71}, {"swap_frozen", 409, 644}, {"accumulate", 137, 866}}});
}

TEST(Programs, Seed10471) {
  expect_no_defect(
      {10471,
       Config::parse("fsdp, num_ranks 2, min_num_params 40, backward_prefetch post, "
                     "forward_prefetch false, limit_all_gathers false, use_orig_params true, shared_copy "
                     "false, reproducible true, micro_batches 2"),
       {{"load_saved", 222, 820}, {"go_back_twice", 534, 484}, {"step", 246, 605}, {"train_two_at_once", 441, 564}}});
}

TEST(Programs, Seed20319) {
  expect_no_defect({20319,
                    Config::parse("fsdp, num_ranks 4, odd aliases, wrap_elements 108, min_num_params 40, "
                                  "backward_prefetch post, limit_all_gathers false, shared_copy false, reproducible "
                                  "true, micro_batches 4"),
                    {{"train", 701, 35},
                     {"cast", 300, 735},
                     {"train", 184, 239},
                     {"step", 166, 971},
                     {"evaluate_a_part", 346, 754}}});
}

/// What was written inside gather() was lost when a forward in it was refused, and every later one was refused too.
TEST(Programs, Seed10334) {
  expect_no_defect({10334,
                    Config::parse("fsdp, num_ranks 2, wrap_elements 130, strategy zero1, min_num_params 0, "
                                  "backward_prefetch post, forward_prefetch false, limit_all_gathers false"),
                    {{"open_gather", 206, 417},
                     {"write", 854, 291},
                     {"swap_frozen", 744, 42},
                     {"accumulate", 727, 288},
                     {"accumulate", 720, 465}}});
}

/// A frozen BatchNorm came before all that is trained: its buffers were written to when the graph had kept them.
TEST(Programs, Seed10874) {
  expect_no_defect({10874,
                    Config::parse("ddp, num_ranks 4, bucket_bytes 400, first_bucket_bytes 64, find_unused_parameters "
                                  "true, gradient_as_bucket_view false"),
                    {{"load", 478, 833}, {"ask_for_slopes", 629, 389}}});
}

TEST(Programs, Seed20479) {
  expect_no_defect({20479,
                    Config::parse("ddp, num_ranks 2, keeps views, bucket_bytes 400, find_unused_parameters true, "
                                  "gradient_as_bucket_view false"),
                    {{"swap_frozen", 743, 519}, {"ask_for_slopes", 850, 415}}});
}

TEST(Programs, ReadBackTheirConfiguration) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::string text = make_program(seed).config.text();
    EXPECT_EQ(Config::parse(text).text(), text);
    const std::string on_stages = make_program(seed, {.has_stages = true}).config.text();
    EXPECT_EQ(Config::parse(on_stages).text(), on_stages);
  }
}

TEST(Programs, AreTheSameForASeed) {
  EXPECT_EQ(make_program(5).text(), make_program(5).text());
  EXPECT_NE(make_program(5).text(), make_program(6).text());
}

// Ranks that share layers.

/// The part of a cut dimension had one index, and its memory another order than that of the whole.
TEST(Programs, Seed855700372) {
  expect_no_defect({855700372,
                    Config::parse("ddp, num_ranks 2, tp 2, wrapped, find_unused_parameters true, "
                                  "broadcast_buffers false"),
                    {{"load_saved", 156, 379}}});
}

/// What an optimizer wrote inside gather() was lost.
TEST(Programs, Seed63) {
  expect_no_defect({63,
                    Config::parse("fsdp, num_ranks 2, tp 2, wrap_elements 16, strategy no_shard, min_num_params 40, "
                                  "backward_prefetch post, use_orig_params true"),
                    {{"train_apart", 178, 790},
                     {"open_gather", 651, 938},
                     {"step", 847, 402},
                     {"train", 259, 659},
                     {"use_a_view", 478, 749}}});
}

/// Units differed between ranks whose parts were of different size.
TEST(Programs, Seed130) {
  expect_no_defect({130,
                    Config::parse("fsdp, num_ranks 4, tp 4, wrap_elements 92, max_unit_bytes 100, min_num_params 40, "
                                  "backward_prefetch post, init_sync false"),
                    {{"train_two_at_once", 643, 376},
                     {"open_gather", 410, 837},
                     {"step", 419, 757},
                     {"train_two_at_once", 746, 196},
                     {"train_two_at_once", 653, 902}}});
}

/// What is whole for a time was taken for other memory.
TEST(Programs, Seed350) {
  expect_no_defect({350,
                    Config::parse("ddp, num_ranks 2, tp 2, wrapped, bucket_bytes 64, first_bucket_bytes 64, "
                                  "find_unused_parameters true"),
                    {{"train_apart", 623, 291}, {"freeze", 258, 923}, {"load_saved", 664, 326}}});
}

/// What was trained since had a gradient that nobody had fitted.
TEST(Programs, Seed1009) {
  expect_no_defect({1009,
                    Config::parse("ddp, num_ranks 2, tp 2, bucket_bytes 64, first_bucket_bytes 64, "
                                  "find_unused_parameters true"),
                    {{"swap_frozen", 10, 478}, {"train", 23, 552}}});
}

/// A view from before gather() was written to inside of it.
TEST(Programs, Seed580) {
  expect_no_defect(
      {580,
       Config::parse("fsdp, num_ranks 2, tp 2, strategy zero1, max_unit_bytes 100, min_num_params 40, "
                     "backward_prefetch post"),
       {{"keep_a_view", 244, 272}, {"open_gather", 607, 123}, {"use_a_view", 721, 885}, {"evaluate", 113, 352}}});
}

/// torch::load() inside gather() took parameters away from the hooks that average their gradients.
TEST(Programs, Seed427OfCutShards) {
  expect_no_defect({427,
                    Config::parse("fsdp, num_ranks 2, tp 2, wrap_elements 63, strategy no_shard, max_unit_bytes 1, "
                                  "min_num_params 0, forward_prefetch false, shared_copy false"),
                    {{"train_promised", 149, 935}, {"load_saved", 651, 508}, {"train", 974, 869}}});
}

/// A sum that was under way kept its tensor longer on one rank than on the other, so autograd added to it in place on
/// one of them only, and the ranks called other collectives.
TEST(Programs, Seed22461) {
  expect_no_defect({22461,
                    Config::parse("ddp, num_ranks 2, tp 2, hook, bucket_bytes 400, find_unused_parameters true"),
                    {{"evaluate_a_part", 985, 942},
                     {"train", 162, 745},
                     {"train", 676, 686},
                     {"step", 234, 668},
                     {"step_with_scaler", 835, 34},
                     {"step", 330, 12},
                     {"train", 843, 719},
                     {"accumulate", 179, 400},
                     {"read", 468, 277},
                     {"read", 383, 449},
                     {"go_back_twice", 953, 361}}});
}

/// What torch::load() put into a model that gather() held whole was lost.
TEST(Programs, Seed1397OfCutShards) {
  expect_no_defect(
      {1397,
       Config::parse("fsdp, num_ranks 2, tp 2, strategy no_shard, min_num_params 40, backward_prefetch post, "
                     "forward_prefetch false, shared_copy false"),
       {{"load_saved", 679, 292}}});
}

/// What was loaded inside gather() was lost at its end: the shards had not heard of it.
TEST(Programs, Seed1443OfCutShards) {
  expect_no_defect(
      {1443,
       Config::parse("fsdp, num_ranks 4, tp 2, wrap_elements 67, min_num_params 10, backward_prefetch none, "
                     "limit_all_gathers false, shared_copy false"),
       {{"open_gather", 46, 748}, {"load", 289, 240}, {"train", 571, 706}, {"step", 4, 833}}});
}

/// The same after something was refused inside gather().
TEST(Programs, Seed1740OfCutShards) {
  expect_no_defect({1740,
                    Config::parse("fsdp, num_ranks 2, tp 2, wrap_elements 56, strategy zero1, min_num_params 0, "
                                  "init_sync false, broadcast_buffers false"),
                    {{"open_gather", 108, 450},
                     {"load", 622, 299},
                     {"freeze", 421, 133},
                     {"evaluate", 702, 955},
                     {"hook", 525, 730}}});
}

/// Views of a whole that gather() had made were used after it: what they were written was lost.
TEST(Programs, Seed2477OfCutShards) {
  expect_no_defect({2477,
                    Config::parse("fsdp, num_ranks 2, tp 2, strategy zero1, min_num_params 0, use_orig_params true, "
                                  "init_sync false"),
                    {{"open_gather", 71, 203},
                     {"keep_a_view", 116, 484},
                     {"train", 238, 974},
                     {"use_a_view", 368, 307},
                     {"train_apart", 249, 643}}});
}

/// A checkpoint inside gather() had the values from before.
TEST(Programs, Seed3419OfCutShards) {
  expect_no_defect({3419,
                    Config::parse("fsdp, num_ranks 2, tp 2, min_num_params 10, backward_prefetch post, "
                                  "limit_all_gathers false, use_orig_params true"),
                    {{"open_gather", 972, 136},
                     {"write", 451, 673},
                     {"save_checkpoint", 789, 603},
                     {"close_gather", 27, 926},
                     {"load_checkpoint", 438, 64}}});
}

/// Wrote to flatten() of a weight with gaps, a copy in one process and a view of the sharded parameter, which is in
/// row-major order as the guide says. The action writes to a view in both now.
TEST(Programs, Seed1616387045) {
  expect_no_defect({1616387045,
                    Config::parse("fsdp, num_ranks 1, odd gaps, wrap_elements 88, max_unit_bytes 1, min_num_params 10, "
                                  "backward_prefetch none, shared_copy false"),
                    {{"write", 934, 773}}});
}

/// Frozen after fully_shard(): only ranks that have elements of the parameter refused it, and the others waited.
TEST(Programs, Seed773OfCutShards) { expect_no_defect(make_program(773, {.cuts_shards = true})); }

/// Wrote through a pointer to a weight with gaps, where shards have another element. The action goes by strides now.
TEST(Programs, Seed1493430639) {
  expect_no_defect({1493430639,
                    Config::parse("fsdp, num_ranks 2, odd gaps, wrap_elements 142, strategy zero1, max_unit_bytes 1, "
                                  "min_num_params 10, backward_prefetch post, limit_all_gathers false, "
                                  "use_orig_params true, shared_copy false, reproducible true, micro_batches 2"),
                    {{"write", 125, 34}, {"train_promised", 839, 693}}});
}

/// Frozen with a gradient that was left, by ranks whose optimizer knows all of its unit as one vector: it went on to
/// change it, though the program had made an optimizer of what is trained.
TEST(Programs, Seed770213) {
  expect_no_defect(
      {770213,
       Config::parse("fsdp, num_ranks 4, wrap_elements 44, strategy zero1, max_unit_bytes 1, "
                     "min_num_params 0, backward_prefetch none, forward_prefetch false, shared_copy false"),
       {{"train", 58, 967},
        {"swap_frozen", 455, 118},
        {"save_checkpoint", 239, 791},
        {"load_checkpoint", 307, 996},
        {"step", 927, 867}}});
}

/// Buffers were taken from rank 0, with a new version, though a graph lived that had kept them and led to parameters
/// that stay whole alone.
TEST(Programs, Seed1880381) {
  expect_no_defect({1880381,
                    Config::parse("fsdp, num_ranks 2, wrap_elements 113, strategy no_shard, max_unit_bytes 1, "
                                  "min_num_params 40, backward_prefetch post, limit_all_gathers false"),
                    {{"train_promised", 722, 613}, {"load", 432, 129}, {"train_apart", 472, 153}}});
}

// Models on the stages of a pipeline.

/// One stage refused in the middle of a step that parameters had been unfrozen, and the others waited for it.
TEST(Programs, Seed770541OnStages) { expect_no_defect(make_program(770541)); }
TEST(Programs, Seed770849OnStages) {
  expect_no_defect({770849,
                    Config::parse("fsdp, num_ranks 1, pp 1, pipe.schedule round_robin, pipe.dynamic true, "
                                  "pipe.init_sync false, pipe.num_checked_steps 1000, pipe.receive_ahead 3, "
                                  "wrap_elements 55, strategy zero1, min_num_params 40, backward_prefetch none, "
                                  "use_orig_params true, init_sync false"),
                    {{"swap_frozen", 670, 533}, {"train_stages", 253, 155}, {"train_stages", 844, 506}}});
}
TEST(Programs, Seed770993OnStages) {
  expect_no_defect({770993,
                    Config::parse("fsdp, num_ranks 2, pp 2, pipe.schedule sequential, pipe.dynamic true, "
                                  "pipe.init_sync false, pipe.num_checked_steps 0, pipe.receive_ahead 0, "
                                  "max_unit_bytes 1, min_num_params 10, limit_all_gathers false, "
                                  "use_orig_params true, init_sync false, shared_copy false"),
                    {{"swap_frozen", 277, 559}, {"train_stages", 750, 123}}});
}

/// Buckets of one stage were saved as those of all, and refused on the others.
TEST(Programs, Seed303OnStages) {
  Program program{303,
                  Config::parse("ddp, num_ranks 2, pp 2, pipe.schedule round_robin, pipe.init_sync false, "
                                "pipe.num_checked_steps 1000, pipe.receive_ahead 3, find_unused_parameters true"),
                  {}};
  program.actions = {
      {"save_checkpoint", 350, 206},
  };
  expect_no_defect(program);
}

/// A gradient was cut that crosses to a stage whose value is whole.
TEST(Programs, Seed2880096OnStages) { expect_no_defect(make_program(2880096, {.has_stages = true})); }

/// A write to shards was refused, and what looked at them afterwards was refused too.
TEST(Programs, Seed15880045OnStages) { expect_no_defect(make_program(15880045, {.has_stages = true})); }

/// Inside gather() a stage looked like a whole model, whose buckets are saved.
TEST(Programs, Seed15880203OnStages) {
  expect_no_defect({15880203,
                    Config::parse("ddp, num_ranks 2, pp 2, pipe.schedule zb-v, pipe.num_checked_steps 2, "
                                  "pipe.receive_ahead 0, bucket_bytes 64, first_bucket_bytes 64, "
                                  "find_unused_parameters true, init_sync false"),
                    {{"open_gather", 725, 701}, {"save_checkpoint", 820, 566}}});
}

/// A received value was written to in a part that was computed again.
TEST(Programs, Seed5880124OnStages) {
  expect_no_defect({5880124,
                    Config::parse("ddp, num_ranks 2, pp 2, bare, pipe.schedule zb-v, pipe.dynamic true, "
                                  "pipe.num_checked_steps 0, pipe.receive_ahead 1, first_bucket_bytes 64, "
                                  "find_unused_parameters true, gradient_as_bucket_view false, init_sync false"),
                    {{"train_stages", 137, 812}}});
}

/// Buffers that the program had loaded were taken from rank 0 after the forward had used them, with a new version.
TEST(Programs, Seed6880053OnStages) {
  expect_no_defect({6880053,
                    Config::parse("fsdp, num_ranks 2, pp 1, pipe.schedule zb-v, pipe.dynamic true, "
                                  "pipe.num_checked_steps 1000, pipe.receive_ahead 0, strategy no_shard, "
                                  "max_unit_bytes 1, min_num_params 10, backward_prefetch post, use_orig_params true"),
                    {{"load", 878, 883}, {"train_stages", 567, 590}}});
}

/// Copies of a stage took buffers of other stages for values of the forward.
TEST(Programs, Seed1880107OnStages) {
  expect_no_defect({1880107,
                    Config::parse("fsdp, num_ranks 4, pp 2, pipe.schedule interleaved, pipe.dynamic true, "
                                  "pipe.num_checked_steps 0, pipe.receive_ahead 1, min_num_params 10, "
                                  "limit_all_gathers false, use_orig_params true, init_sync false, shared_copy false"),
                    {{"log", 633, 471}, {"train_stages", 78, 979}}});
}

}  // namespace
}  // namespace tessera::testing
