// Packs the npm packages of a release: one for each platform with the binary in it, and `foldgate`,
// which depends on all of them optionally, so that npm installs the one that fits.
//
//   node pack.mjs VERSION OUT PLATFORM=BINARY...     such as linux-x64=dist/foldgate_linux_amd64/foldgate
import {execFileSync} from 'node:child_process';
import {chmodSync, copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {dirname, join, resolve} from 'node:path';
import {fileURLToPath} from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const [version, out, ...binaries] = process.argv.slice(2);
if (!/^\d+\.\d+\.\d+(-[\w.-]+)?$/.test(version ?? '') || binaries.length === 0) {
  console.error('usage: node pack.mjs VERSION OUT PLATFORM=BINARY..., with a version such as 1.2.3');
  process.exit(2);
}
const base = JSON.parse(readFileSync(join(here, 'foldgate/package.json'), 'utf8'));
const work = mkdtempSync(join(tmpdir(), 'foldgate-npm-'));
mkdirSync(out, {recursive: true});

function pack(dir, manifest) {
  writeFileSync(join(dir, 'package.json'), JSON.stringify(manifest, null, 2) + '\n');
  copyFileSync(join(here, '../../LICENSE'), join(dir, 'LICENSE'));
  const name = execFileSync('npm', ['pack', '--silent', '--pack-destination', resolve(out)], {cwd: dir, encoding: 'utf8', shell: process.platform === 'win32'});
  console.log(join(out, name.trim()));
}

try {
  const optional = {};
  for (const arg of binaries) {
    const [platform, binary] = arg.split('=');
    const [os, cpu] = platform.split('-');
    if (!['linux', 'darwin', 'win32'].includes(os) || !['x64', 'arm64'].includes(cpu) || !binary) {
      throw new Error(`${arg}: write linux-x64=path, with one of linux, darwin, win32 and one of x64, arm64`);
    }
    const dir = join(work, platform), file = os === 'win32' ? 'foldgate.exe' : 'foldgate';
    mkdirSync(join(dir, 'bin'), {recursive: true});
    copyFileSync(binary, join(dir, 'bin', file));
    chmodSync(join(dir, 'bin', file), 0o755);
    const {license, repository} = base, name = `@foldgate/${platform}`;
    pack(dir, {name, version, description: `foldgate for ${platform}`, license, repository, os: [os], cpu: [cpu], files: ['bin'], preferUnplugged: true});
    optional[name] = version;
  }
  const dir = join(work, 'foldgate');
  cpSync(join(here, 'foldgate'), dir, {recursive: true});
  copyFileSync(join(here, '../../README.md'), join(dir, 'README.md'));
  pack(dir, {...base, version, optionalDependencies: optional});
} finally {
  rmSync(work, {recursive: true});
}
