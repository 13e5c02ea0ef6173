-- An operator may hand its provider over, and one that left may register anew: for a moment inside a stretch, and for good
-- across providers that are gone, an operator is not unique any more. The registry keeps it so at every block.
alter table providers drop constraint providers_operator_key;
