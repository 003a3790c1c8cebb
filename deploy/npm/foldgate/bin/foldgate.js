#!/usr/bin/env node
// Starts the binary that the package of this platform contains. Nothing is downloaded.
'use strict';
const {spawn} = require('node:child_process');
const os = require('node:os');

const platform = `${process.platform}-${process.arch}`;
const file = process.platform === 'win32' ? 'foldgate.exe' : 'foldgate';
let binary;
try {
  binary = require.resolve(`@foldgate/${platform}/bin/${file}`);
} catch {
  console.error(`foldgate: the package @foldgate/${platform} is not installed. There is one for linux, darwin and ` +
    'win32 on x64 and arm64; npm leaves it out with --omit=optional, or if node_modules comes from another platform.');
  process.exit(1);
}
const child = spawn(binary, process.argv.slice(2), {stdio: 'inherit', windowsHide: true});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
child.on('error', err => {
  console.error(`foldgate: ${err.message}`);
  process.exit(1);
});
child.on('exit', (code, signal) => process.exit(signal ? 128 + os.constants.signals[signal] : code));
