-- Which generations of escrow keys this deployment has announced: public halves alone. The secrets are in the memory of
-- the instances, so this is how one that starts knows what was there before it, and what nobody handed on to it.
create table escrow_generations (
    public_key bytea primary key,
    announced_from bigint not null,      -- Unix milliseconds
    announced_block bigint,              -- the head when it was first seen to be announced
    erased_at timestamptz,               -- after its retention: nothing that is sealed to it can be claimed any more
    lost_at timestamptz                  -- when an instance found that nobody handed it on
);
