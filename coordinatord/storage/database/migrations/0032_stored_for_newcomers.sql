-- least release: 0.1.0
-- What wallets keep that have earned nothing, all together: they cost nothing to make, so that a bound on each is none.
-- The janitor marks the rows of those that have earned more room since (has_earned).
alter table stored add column earned boolean not null default false;
update stored set earned = true where has_earned(owner);
create index stored_of_newcomers on stored (owner) where not earned;
