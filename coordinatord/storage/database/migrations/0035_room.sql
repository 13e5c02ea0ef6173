-- least release: 0.1.0
-- The one definition of how many jobs a provider may hold and how many it holds: claimed jobs, open orders designated to
-- it, and such orders whose post is under way, so that a burst of orders within one block is spread.
create index pending_offers_designated on pending_offers (designated) where designated > 0;

create view provider_rooms as
    select provider_id, capacity, capacity - held as room
    from (
        select v.provider_id,
            greatest(1, v.reputation * least(v.requested, v.ceiling) / 1000) as capacity,
            v.active_jobs
            + (select count(*) from jobs j where j.designated = v.provider_id and j.designated > 0 and j.state = 0)
            + (select count(*) from pending_offers o where o.designated = v.provider_id and o.designated > 0
                and not exists (select from jobs j where j.job_id = o.job_id)) as held
        from providers v
    ) counted;
