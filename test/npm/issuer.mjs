// An authorization server of another make for the tests: oidc-provider, with its own pages to log in
// and to consent. It prints its URL. POST /test/rotate gives it new keys, and POST /test/life?seconds=N
// another life of access tokens.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

let life = 600;
let keys = [];
let rotations = 0;

function key() {
  const jwk = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  return { ...jwk, kid: `key-${++rotations}`, use: 'sig', alg: 'RS256' };
}

const people = { ann: { department: 'data', groups: ['analyst'] }, ben: { department: 'sales', groups: ['staff'] } };

// adapter keeps what the provider stores, also when it gets new keys.
const stored = new Map();
function adapter(model) {
  const at = (id) => `${model}:${id}`;
  return {
    upsert: async (id, payload) => void stored.set(at(id), payload),
    find: async (id) => stored.get(at(id)),
    findByUid: async (uid) => [...stored].find(([key, value]) => key.startsWith(`${model}:`) && value.uid === uid)?.[1],
    findByUserCode: async () => undefined,
    consume: async (id) => void (stored.get(at(id)).consumed = Math.floor(Date.now() / 1000)),
    destroy: async (id) => void stored.delete(at(id)),
    revokeByGrantId: async (grant) => stored.forEach((value, key) => value.grantId === grant && stored.delete(key)),
  };
}

function provider(url) {
  keys = [key()];
  const p = new Provider(url, {
    adapter,
    jwks: { keys },
    cookies: { keys: ['a key for the tests'] },
    scopes: ['openid', 'offline_access', 'db:read', 'db:write'],
    features: {
      devInteractions: { enabled: true },
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: (ctx, client, named) => named,
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, resource) => ({ scope: 'db:read db:write', audience: resource, accessTokenFormat: 'jwt', accessTokenTTL: life, jwt: { sign: { alg: 'RS256' } } }),
      },
    },
    issueRefreshToken: (ctx, client) => client.grantTypeAllowed('refresh_token'),
    rotateRefreshToken: true,
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    extraTokenClaims: (ctx, token) => people[token.accountId],
  });
  return p.callback();
}

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  let serve = provider(url);
  server.on('request', (req, res) => {
    const at = new URL(req.url, url);
    if (at.pathname === '/test/rotate') serve = provider(url);
    else if (at.pathname === '/test/life') life = Number(at.searchParams.get('seconds'));
    else return serve(req, res);
    return res.end('done');
  });
  console.log(`issuer ${url}`);
});
