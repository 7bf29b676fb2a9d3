/* In front of blocks.h: blocks are read where they are, and not from a copy in local memory, which STAGED makes. */
#define IN_PLACE (!STAGED)
