/* Rows of weights, loaded by a producer warp for consumer warps: for compute capability 9.0 and later.
 *
 * A group takes a range of the rows of each of its jobs, side by side in memory. The producer warp copies
 * stages of ROWS rows to local memory as soon as they are free. The others form TEAMS; a team takes every TEAMS-th
 * row of a stage, and its lanes keep the same places of all rows, so x stays in registers. (Warp
 * specialisation is CUTLASS's word.)
 *
 * With CONSTANT_W stages are filled before the predecessor on the stream has ended, since nobody writes the
 * weights: so memory is busy while small kernels run. (Fetching what does not depend on the predecessor before
 * the grid dependency is what NVIDIA's programming guide proposes for programmatic dependent launch.) Stages take
 * more than half of the local memory of a multiprocessor, if there is so much to fetch, so that the groups of a
 * successor spread over all of them: each begins where one of this kernel has ended. The successor is let in
 * LEAD stages before the end, since a launch takes as long as these, and not before the predecessor has
 * ended: two kernels that fetch at once only take the memory from what they wait for. With PEERS_MET it is let in
 * after the words of the other GPUs have been seen, too.
 *
 * Until all stages have been filled once no more than FLIGHT of them are under way: few where a group is given few,
 * since it has them in time anyway, and what the predecessor reads comes behind all that has been requested.
 *
 * NK, the extent of the sum, is a constant. Rows of a weight have no gaps. ALIGNED says that they begin at multiples
 * of 128 bytes; if not, stages are copied with the bytes before and behind them that fill pieces of 16.
 *
 * Stages lie in local memory as their rows lie to multiples of 128 bytes: where places of the two differ by less than
 * 32 bytes, copies take half as long again (seen on an H200).
 */
#define LEAD 8
#define STAGES_OF(name) extern __shared__ __align__(LINE) u8 name[]

typedef struct {
  const u8 *w, *v; /* row 0; v of the gate's other side */
  u8 *y;
#if ALSO
  u8 *also[ALSO]; /* where results are written too, side by side; or null */
#endif
  /* What is added to each sum (v_bias to the only one, too), what the result is multiplied with; or null. */
  const u8 *w_bias, *v_bias, *scale;
  i64 sy, sw_bias, sv_bias; /* bytes from number to number */
  int first, end;
} Job;

/* Rows of a group; the first groups have one more if shares are not even. A group fetches nothing before it knows its
 * share, and to divide numbers of 64 bits took it 2 per cent of a step of gpt-oss. */
FN void share_rows(Job *job, int rows, int part, int parts) {
  u32 each = (u32)rows / (u32)parts, more = (u32)rows - each * (u32)parts;
  job->first = (int)(part * each + MIN((u32)part, more));
  job->end = job->first + (int)(each + ((u32)part < more));
}

/* Where row n begins in a side of a stage that it is the first of. */
FN int before_row(const u8 *w, int n) { return ALIGNED ? 0 : (int)((u64)w + (u64)n * ROW_NBYTES) & (LINE - 1); }

FN int rows_nbytes(int before, int count) {
  int nbytes = (before & 15) + count * ROW_NBYTES;
  return ALIGNED ? nbytes : (nbytes + 15) & ~15;
}
FN void copy_rows(u8 *to, const u8 *w, int n, int before, int nbytes, Gate *full) {
  COPY_SPAN(to + (before & ~15), w + (i64)n * ROW_NBYTES - (before & 15), nbytes, full);
}

/* Begin to copy rows of a job from n on. */
FN void copy_stage(u8 *to, Gate *full, const Job *job, int n) {
  int rows = MIN(ROWS, job->end - n), before = before_row(job->w, n), nbytes = rows_nbytes(before, rows);
#if GATED
  int v_before = before_row(job->v, n), v_nbytes = rows_nbytes(v_before, rows);
  GATE_ANNOUNCE(full, nbytes + v_nbytes);
  copy_rows(to + SIDE_NBYTES, job->v, n, v_before, v_nbytes, full);
#else
  GATE_ANNOUNCE(full, nbytes);
#endif
  copy_rows(to, job->w, n, before, nbytes, full);
}

/* Begin with as many stages of the first job as there is room for, and return how many; by the lane that has opened
 * the gates, before others know of them. Worth while where there is nothing to wait for but stages. */
FN int feed_first(u8 *stages, Gate *full, const Job *job) {
  int filled = 0;
  for (int n = job->first; n < job->end && filled < STAGES; n += ROWS, filled++)
    copy_stage(stages + filled * STAGE_NBYTES, full + filled, job, n);
  return filled;
}

/* All other stages of a group, each as soon as it is free; by the same lane. */
FN void feed(u8 *stages, Gate *full, Gate *empty, const Job *jobs, int count, int filled) {
  /* Before the first phase ends, waiting for the one before returns at once. */
  int buffer = filled % STAGES, phase = filled < STAGES, left = -filled, skip = filled * ROWS;
  for (int j = 0; j < count; j++) left += (jobs[j].end - jobs[j].first + ROWS - 1) / ROWS;
  if (!CONSTANT_W) EARLY_WAIT();
  for (int j = 0; j < count; j++) {
    for (int n = jobs[j].first + (j ? 0 : skip); n < jobs[j].end; n += ROWS) {
      if (CONSTANT_W && filled == STAGES) EARLY_WAIT();
      GATE_AWAIT(empty + buffer, phase);
      if (filled >= FLIGHT && filled < STAGES) GATE_AWAIT(full + filled - FLIGHT, 0);
      if (filled >= STAGES && left <= LEAD) EARLY_LET_GO();
      copy_stage(stages + buffer * STAGE_NBYTES, full + buffer, jobs + j, n);
      filled++, left--;
      if (++buffer == STAGES) buffer = 0, phase ^= 1;
    }
  }
  if (CONSTANT_W) EARLY_WAIT();
#if PEERS_MET
  /* The successor may read early what other GPUs wrote before they set their words. Consumer warps have seen the words
   * when they have multiplied a stage; the end of a thread block without stages lets the successor in as well. */
  if (filled == 0) return;
  if (filled <= STAGES) GATE_AWAIT(empty, 0);
#endif
  EARLY_LET_GO();
}

/* A row of results: none if `job` is null. */
typedef struct {
  const Job *job;
  int n;
} Target;

FN int stages_of(const Job *job) { return (job->end - job->first + ROWS - 1) / ROWS; }

/* Where the result of row `row` of a stage goes; stages of all jobs are counted on. */
FN Target target_of(const Job *jobs, int number, int stage, int row) {
  Target target = {0, 0};
  UNROLL for (int j = 0; j < number; j++) {
    int stages = stages_of(jobs + j), n = jobs[j].first + stage * ROWS + row;
    if (stage >= 0 && stage < stages && n < jobs[j].end) target.job = jobs + j, target.n = n;
    stage -= stages;
  }
  return target;
}

/* A number of a vector that may be missing. */
FN float number_of(const u8 *from, i64 step, int n) { return from != 0 ? READ_F32(from + n * step) : 0.0f; }

/* Add up what the warps have kept for the row of a set that this lane stores. */
FN void store_row(Target target, const float *kept, const float *bias, float p0, float p1) {
  if (target.job == 0) return;
  float sums[SIDES];
  UNROLL for (int s = 0; s < SIDES; s++) {
    sums[s] = 0.0f;
    UNROLL for (int warp = 0; warp < TEAM_WARPS; warp++) sums[s] += kept[KEPT_PLACE(LANE, s, warp)];
    sums[s] += bias[s];
  }
#if GATED == 1
  float result = sums[0] / (1.0f + EXP(-sums[0])) * sums[1];
#elif GATED == 2
  float gate = MIN(sums[0], p1), up = MAX(MIN(sums[1], p1), -p1);
  float result = gate / (1.0f + EXP(-p0 * gate)) * (up + 1.0f);
#else
  float result = sums[0] + bias[1];
#endif
  if (target.job->scale != 0) result *= READ_F32(target.job->scale);
  F32_AT(target.job->y + target.n * target.job->sy) = result;
#if ALSO
  UNROLL for (int i = 0; i < ALSO; i++)
    if (target.job->also[i] != 0) F32_AT(target.job->also[i] + (i64)target.n * 4) = result;
#endif
}

#if !TILES
/* Add the products of a lane with a stage; `begin` says where row 0 of each side begins. */
FN void add_stage(float *sums, const Kept *x, const u8 *stage, const int *begin) {
  UNROLL for (int u = 0; u < UNITS; u++) {
    int piece = piece_of(u);
    if (HAS_ALL || piece < PIECES) {
      UNROLL for (int i = 0; i < SUMS; i++) {
        int at = begin[i / EACH] + (i % EACH * TEAMS + LANE / TEAM_LANES) * ROW_NBYTES;
        sums[i] += dot_piece(x + u, stage, at, piece);
      }
    }
  }
}

/* Add up over lanes what they have of the stages from row `first` of a set on, and keep it. */
FN void keep_sums(float *kept, float *sums, int first) {
  ADD_OVER_LANES(sums, BATCH * SUMS, 32, kept);
  /* A lane has now the sum with this number: stage by stage, in each side by side of EACH rows. */
  int i = WARP_LANE * (BATCH * SUMS) / 32, row = first + i / SUMS * ROWS + i % EACH * TEAMS + LANE / TEAM_LANES;
  if (WARP_LANE % (32 / (BATCH * SUMS)) == 0)
    kept[KEPT_PLACE(row, i % SUMS / EACH, WARP_INDEX % TEAM_WARPS)] = sums[0];
}
#endif

/* The sums of all jobs; p0 and p1 are parameters of the gate. Sets go on from job to job: what is done once for each,
 * in which no stage is multiplied, takes as long as a few stages. */
FN void multiply(const Kept *x, const u8 *stages, Gate *full, Gate *empty, const Job *jobs, int number, float *kept,
                 float p0, float p1) {
  int buffer = 0, phase = 0, total = 0;
  UNROLL for (int j = 0; j < number; j++) total += stages_of(jobs + j);
  const Job *job = jobs;
  int n = job->first; /* row that the next stage begins with */
  float *mine = kept;
  EARLY_LINGER();
  for (int s0 = 0; s0 < total; s0 += SET / ROWS) {
    int count = MIN(SET / ROWS, total - s0);
    Target target = {0, 0};
    if (LANE < SET) target = target_of(jobs, number, s0 + LANE / ROWS, LANE % ROWS);
    float bias[2] = {0.0f, 0.0f};
    if (target.job != 0) {
      bias[0] = number_of(target.job->w_bias, target.job->sw_bias, target.n);
      bias[1] = number_of(target.job->v_bias, target.job->sv_bias, target.n);
    }
    for (int done = 0; done < count; done += BATCH) {
      float sums[BATCH * SUMS];
      UNROLL for (int i = 0; i < BATCH * SUMS; i++) sums[i] = 0.0f;
      UNROLL for (int b = 0; b < BATCH; b++) {
        if (done + b < count) {
          while (n >= job->end) job++, n = job->first;
          int begin[2] = {before_row(job->w, n), SIDE_NBYTES + before_row(job->v, n)};
          GATE_AWAIT(full + buffer, phase);
          add_stage(sums + b * SUMS, x, stages + buffer * STAGE_NBYTES, begin);
          WARP_SYNC();
          if (WARP_LANE == 0) GATE_ARRIVE(empty + buffer);
          if (++buffer == STAGES) buffer = 0, phase ^= 1;
          n += ROWS;
        }
      }
      keep_sums(mine, sums, done * ROWS);
    }
    MEET(LANES);
    store_row(target, mine, bias, p0, p1);
    mine = mine == kept ? kept + SET_SUMS : kept;
  }
}

/* By one lane. */
FN void open_gates(Gate *full, Gate *empty) {
  for (int i = 0; i < STAGES; i++) {
    GATE_OPEN(full + i, 1);
    GATE_OPEN(empty + i, WARPS);
  }
  GATES_READY();
}
