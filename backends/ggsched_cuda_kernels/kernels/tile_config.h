/* Constants of a warp-specialised kernel that follow from its tile configuration (tile_config.py).
 *
 * With TILES a group is one team, and its lanes have sums of each tile of 16 rows (gemv_tiles.h).
 */
#define LINE 128
#define WARPS (LANES / 32)
#define SIDES (1 + (GATED > 0))
#define TEAM_LANES (LANES / TEAMS)
#define TEAM_LANE (LANE % TEAM_LANES)
#define TEAM_WARPS (WARPS / TEAMS)
#define EACH (ROWS / TEAMS) /* rows of a team in a stage */
#define TILE_ROWS (16 / SIDES)
#define SUMS (TILES ? ROWS / TILE_ROWS * 4 : SIDES * EACH) /* of a lane, in a stage */
/* Stages whose sums are added over lanes at once: up to eight sums. */
#define BATCH (!TILES && SUMS < 8 && 8 / SUMS * ROWS <= 64 ? 8 / SUMS : 1)
#define SIDE_NBYTES ((ROWS * ROW_NBYTES + (ALIGNED ? LINE - 1 : 2 * LINE - 1)) & ~(LINE - 1))
#define STAGE_NBYTES (SIDES * SIDE_NBYTES)
#define SET (64 / (BATCH * ROWS) * BATCH * ROWS) /* rows whose sums are added over warps at once */
#define SET_SUMS (SET * SIDES * TEAM_WARPS)
/* Of the sum that a warp keeps for a row of a set: rows side by side, since as many lanes read them. */
#define KEPT_PLACE(row, side, warp) (((side) * TEAM_WARPS + (warp)) * SET + (row))
