// Memory that the operators of the CPU backend keep between calls, so that a steady state allocates nothing. It only
// grows; its content means nothing from one call to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/draft_kernels.h"
#include "cpu/operator_kernels.h"
#include "cpu/products.h"
#include "numerics/tensor.h"

namespace foretoken::cpu {

struct MoeScratch {
  Buffer logits, inputs, results, shared, shared_gate;
  std::vector<int32_t> chosen;
  std::vector<float> weights;
  std::vector<int64_t> first, next, place;
  std::vector<int> row;
  std::vector<ExpertRows> groups;
  std::vector<const float*> result_rows;
};

struct AttentionItem {
  int lane, first_row, rows, first_head, heads;
};
struct AttentionLane {
  int64_t first;  // of its rows in first_slot, when it is a tree
  bool chain;
};
struct AttentionWork {
  Buffer thread_scratch, states;
  std::vector<int64_t> slots, first_slot;
  std::vector<AttentionLane> lanes;
  std::vector<AttentionItem> items;
};

struct ConvWork {
  std::vector<const float*> inputs;
  std::vector<ConvRow> rows;
  std::vector<TailMove> moves;
};

// Rows order[first .. first + count) of a lane, each the child of the one before.
struct DeltaRunPlan {
  int first, count, source, target;
};
struct DeltaBranch {
  int row, source, level;
};
struct DeltaWork {
  Buffer query, key, decay, beta, blocks;
  std::vector<DeltaRow> rows;
  std::vector<ReplayRow> replay;
  std::vector<DeltaRunPlan> runs;
  std::vector<DeltaBranch> stack;
  std::vector<int> order, child_first, children, cursor;
};

struct DraftWork {
  std::vector<DraftConvRow> conv_rows;
  Buffer weighted;
};

struct OperatorScratch {
  MoeScratch moe;
  AttentionWork attention;
  ConvWork conv;
  DeltaWork delta;
  DraftWork draft;
};

}  // namespace foretoken::cpu
