-- least release: 0.1.0
-- What a job began with, by job: the page of one job names its transactions. Those that ended jobs have such an index.
create index relays_beginning on relays (subject) where state = 'mined' and kind in ('post', 'claim');
