#pragma once

#include <tessera/launch/local_job.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing {

using Arguments = std::vector<std::string>;

/// What a spawned copy of the test program does. It returns when all went well and throws otherwise.
using Role = std::function<void(const Arguments&)>;

/// `main` of a test program whose tests spawn it again: with `--role NAME ARGUMENTS...` it plays that role and its exit
/// code tells the kind of error, else it runs the tests.
int run_tests_or_role(int argc, char** argv, const std::map<std::string, Role>& roles);

/// A job of copies of this program in that role.
launch::LocalJob job_of(int num_ranks, const std::string& role, const Arguments& arguments = {});

/// Expects that every rank ended well; shows what the others wrote.
void expect_success(const std::vector<launch::RankResult>& results);
void expect_success(const launch::LocalJob& job);

}  // namespace tessera::testing
