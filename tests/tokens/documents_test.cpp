#include "tokens/documents.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::tokens {
namespace {

using Texts = std::vector<std::string>;

Texts documents_of(std::string_view text, DocumentUnit unit) {
  Texts found;
  for_each_document(text, unit, [&](std::string_view document) { found.emplace_back(document); });
  return found;
}

TEST(Documents, AFileIsTakenAsItIs) {
  EXPECT_EQ(documents_of("one\n\ntwo\n", DocumentUnit::kFile), (Texts{"one\n\ntwo\n"}));
  EXPECT_EQ(documents_of("", DocumentUnit::kFile), (Texts{""}));
}

TEST(Documents, ALineHasNoEnd) {
  EXPECT_EQ(documents_of("one\ntwo\r\n \t\n\nthree", DocumentUnit::kLine), (Texts{"one", "two", "", "", "three"}));
  EXPECT_EQ(documents_of("one\n", DocumentUnit::kLine), (Texts{"one"}));
  EXPECT_EQ(documents_of("", DocumentUnit::kLine), Texts{});
}

TEST(Documents, BlankLinesSeparateBlocks) {
  EXPECT_EQ(documents_of("\n\na\nb\r\n\r\n \nc\n\td\n\n\n", DocumentUnit::kBlock), (Texts{"a\nb", "c\n\td"}));
  EXPECT_EQ(documents_of("a\r\nb", DocumentUnit::kBlock), (Texts{"a\r\nb"}));
  EXPECT_EQ(documents_of(" \n\n", DocumentUnit::kBlock), Texts{});
}

}  // namespace
}  // namespace tessera::tokens
