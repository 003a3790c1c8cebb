// Preload for node -r: a server that would listen on every interface listens
// on 127.0.0.1, and a port of 0 from the environment variable PORT works too.
// net.Server.listen takes (port, host, backlog, cb), (options, cb) and paths;
// only TCP without a host is changed.
'use strict';
const net = require('node:net');
const listen = net.Server.prototype.listen;
const loopback = '127.0.0.1';
const any = new Set([undefined, null, '', '0.0.0.0', '::']);

net.Server.prototype.listen = function (...args) {
  const [first] = args;
  if (first !== null && typeof first === 'object') {
    if (first.port !== undefined && first.path === undefined && any.has(first.host)) {
      args[0] = { ...first, host: loopback };
    }
  } else if (first === undefined || typeof first === 'function') {
    args.unshift(0, loopback);
  } else if (!Number.isNaN(Number(first))) {
    if (typeof args[1] !== 'string') args.splice(1, args[1] == null && args.length > 1 ? 1 : 0, loopback);
    else if (any.has(args[1])) args[1] = loopback;
  }
  this.once('listening', () => {
    const a = this.address();
    if (a && typeof a === 'object') process.stderr.write(`listening on ${a.address}:${a.port}\n`);
  });
  return listen.apply(this, args);
};
