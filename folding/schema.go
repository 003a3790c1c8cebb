package folding

// migrations make the schema of the branches, each step once, in order;
// user_version counts them. A step that has been released is never changed.
var migrations = []string{`
	CREATE TABLE branches (
		id           TEXT PRIMARY KEY,
		parent_id    TEXT NOT NULL,
		principal    TEXT NOT NULL,
		session      TEXT NOT NULL,
		origin       TEXT NOT NULL,
		context      TEXT NOT NULL,
		depth        INTEGER NOT NULL,
		description  TEXT NOT NULL,
		prompt       TEXT NOT NULL,
		status       TEXT NOT NULL,
		reason       TEXT NOT NULL DEFAULT '',
		error        TEXT NOT NULL DEFAULT '',
		digest       TEXT NOT NULL DEFAULT '',
		message      TEXT NOT NULL DEFAULT '',
		late         INTEGER NOT NULL DEFAULT 0,
		budget_used  INTEGER NOT NULL,
		budget_total INTEGER NOT NULL,
		activity     TEXT NOT NULL,              -- JSON of Activity
		created_at   INTEGER NOT NULL,           -- microseconds since 1970
		expires_at   INTEGER NOT NULL,
		completed_at INTEGER NOT NULL DEFAULT 0  -- 0 while it lives
	);
	CREATE INDEX branches_active ON branches (created_at) WHERE status = 'active';
	CREATE INDEX branches_ended ON branches (completed_at, id) WHERE completed_at > 0;
	CREATE TABLE branch_archive (
		id           TEXT PRIMARY KEY,
		parent_id    TEXT NOT NULL,
		principal    TEXT NOT NULL,
		session      TEXT NOT NULL,
		context      TEXT NOT NULL,
		depth        INTEGER NOT NULL,
		status       TEXT NOT NULL,
		reason       TEXT NOT NULL,
		budget_used  INTEGER NOT NULL,
		budget_total INTEGER NOT NULL,
		created_at   INTEGER NOT NULL,
		completed_at INTEGER NOT NULL
	);
	CREATE INDEX branch_archive_age ON branch_archive (completed_at);
`}

// applicationID marks the database of the branches as foldgate's: "fold".
const applicationID = 0x666f6c64

// resultMigrations make that of the results.
var resultMigrations = []string{`
	CREATE TABLE results (
		id         INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of age
		handle     TEXT NOT NULL UNIQUE,
		principal  TEXT NOT NULL,
		session    TEXT NOT NULL,
		context    TEXT NOT NULL,
		server     TEXT NOT NULL,
		tool       TEXT NOT NULL,
		kind       TEXT NOT NULL,
		text       TEXT NOT NULL,
		structured TEXT NOT NULL,
		bytes      INTEGER NOT NULL,
		tokens     INTEGER NOT NULL,
		delivered  INTEGER NOT NULL,
		created_at INTEGER NOT NULL -- microseconds since 1970
	);
	CREATE INDEX results_context ON results (principal, context);
	CREATE TABLE gone (
		id        INTEGER PRIMARY KEY AUTOINCREMENT,
		handle    TEXT NOT NULL UNIQUE,
		principal TEXT NOT NULL,
		session   TEXT NOT NULL,
		context   TEXT NOT NULL,
		tool      TEXT NOT NULL,
		why       TEXT NOT NULL, -- quota or age
		at        INTEGER NOT NULL
	);
	CREATE TABLE size (bytes INTEGER NOT NULL);
	INSERT INTO size VALUES (0);
`, `
	CREATE TABLE savings (
		id        INTEGER PRIMARY KEY, -- the order of the first results
		principal TEXT NOT NULL,
		context   TEXT NOT NULL,
		results   INTEGER NOT NULL, -- that were folded, whether or not they are still kept
		tokens    INTEGER NOT NULL, -- not delivered of them, less what was read back
		UNIQUE (principal, context)
	);
	INSERT INTO savings (principal, context, results, tokens)
		SELECT principal, context, count(*), sum(tokens - delivered) FROM results WHERE context != '' GROUP BY principal, context;
	DROP INDEX results_context;
`}
