-- Where in the shards does each kept document lie? Reads places.
UPDATE catalogue
SET shard = places.shard, first_token = places.first_token, tokens = places.tokens
FROM places
WHERE places.id = catalogue.id;
