-- least release: 0.1.0
-- What was refused of a job, by job: whoever follows one before its blocks is told. Ops that are under way, that began
-- a job and that ended it have such indexes.
create index relays_refused on relays (subject)
    where state in ('refused', 'dropped') and kind in ('post', 'claim', 'settle', 'fail', 'cancel', 'reclaim');
