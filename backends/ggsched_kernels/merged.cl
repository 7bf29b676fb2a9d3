/* Several calls as one kernel whose groups stay on the device: behind the kernels of the calls, as functions, and STEP_, which
 * calls that of a step. OpenCL C alone; merged.py writes the parts.
 *
 * The table has STEP_NBYTES for each step: the function, the extent of its grid, flags, how many groups the steps before it in
 * its phase have, and the arguments. Groups take the groups of the steps of a phase in turn, and meet before the next phase.
 * Who has come there is counted in `arrived`, which is zero between two launches.
 */
#define FIRST 1 /* step of a phase */
#define LAST 2
#define WAITS 4 /* before it reads anything; other steps load weights that no step writes */
#define WORDS (STEP_NBYTES / 8)
typedef struct {
  int function, extents[3], flags, before;
} Step_;

/* Without steps: write to the table which groups have met all others. */
__attribute__((reqd_work_group_size(LANES, 1, 1)))
__kernel void merged(__global uchar *table, int steps, __global uint *arrived, uint polls, __global int *fault, int code) {
  __local ulong2 local_[(LOCAL_ + 15) / 16];
  __local ulong step_[WORDS];
  __global const ulong *words = (__global const ulong *)table;
  int group = get_group_id(0), groups = get_num_groups(0), lane = get_local_id(0);
  GridBarrier_ barrier_;
  barrier_.arrived = arrived, barrier_.fault = fault, barrier_.polls = polls, barrier_.count = 0, barrier_.code = code, barrier_.is_due = 0;
  if (steps == 0 && lane == 0) {
    arrive_(arrived);
    ((__global int *)table)[group] = has_arrived_(arrived, (uint)groups, polls);
  }
  ulong next = lane < WORDS && steps > 0 ? words[lane] : 0; /* of a step is under way during the one before */
  for (int s = 0; s < steps; s++, words += WORDS) {
    if (lane < WORDS) step_[lane] = next;
    for (int i = lane + LANES; i < WORDS; i += LANES) step_[i] = words[i];
    ALL_();
    if (lane < WORDS && s + 1 < steps) next = words[WORDS + lane];
    __local const Step_ *step = (__local const Step_ *)step_;
    int across = step->extents[0], down = step->extents[1], all = across * down * step->extents[2], flags = step->flags;
    if (flags & FIRST) barrier_.count += groups, barrier_.is_due = 1, barrier_.step = s;
    int first = (group + groups - step->before % groups) % groups;
    for (int g = first; g < all; g += groups) {
      int group_[6]; /* and the extents */
      group_[0] = g % across, group_[1] = g / across % down, group_[2] = g / across / down;
      group_[3] = across, group_[4] = down, group_[5] = step->extents[2];
      if (flags & WAITS) await_(&barrier_);
      STEP_(step->function, (__local const uchar *)step_ + sizeof(Step_));
      ALL_(); /* local memory is free again */
    }
    if (barrier_.is_due)
      await_(&barrier_);
    else if (first >= all)
      ALL_(); /* all have read the step */
    if (flags & LAST && lane == 0) arrive_(arrived);
  }
  if (lane == 0 && atomic_inc(arrived + 1) == (uint)groups - 1) arrived[0] = 0, arrived[1] = 0;
}

/* Where memory is. */
__kernel void placed(__global ulong *places, int i, __global uchar *memory) { places[i] = (ulong)memory; }
