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
