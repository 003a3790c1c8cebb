package scrub

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestStatements(t *testing.T) {
	s := newScrubber(t, Options{})
	const secret = "hunter2x9"
	for _, text := range []string{
		"INSERT INTO users (name, password) VALUES ('bob', 'SECRET');",
		"insert into `users` (`id`, `password`)\n  values (1, 'SECRET'),\n (2, 'SECRET');",
		"INSERT INTO [dbo].[Users] ([Name], [Password]) VALUES (N'bob', N'SECRET')",
		"REPLACE INTO users (name, password) VALUE ('bob', 'SECRET');\nINSERT OR REPLACE INTO \"users\" (\"name\", \"password\") VALUES ('bob', 'SECRET');",
		"INSERT INTO users (name, password) VALUES ('o''brien', 'SECRET'), ('a\\'b', 'SECRET'), (NULL, NULL), ('x', 'SECRET');",
		"INSERT INTO users (name, password) VALUES ('bob', crypt('SECRET', gen_salt('bf')));",
		"INSERT INTO settings (key, value) VALUES ('smtp_password', 'SECRET');",
		"COPY public.users (id, email, password) FROM stdin;\n1\tbob@x.org\tSECRET\n2\tal@x.org\tSECRET\n\\.\n",
		"COPY users (id, password) FROM stdin WITH (FORMAT csv);\n1,SECRET\n2,\"SECRET\"\n\\.\n",
		"CREATE TABLE users (\n  id int primary key,\n  name text, -- the user's\n  password text DEFAULT 'a,b)',\n  UNIQUE (name),\n  KEY n (name)\n);\nINSERT INTO users VALUES(1,'bob','SECRET');\nINSERT INTO users VALUES(2,'al','SECRET');",
		"CREATE TABLE a (id int, key varchar(40), password text);\nINSERT INTO a VALUES (1, 'x', 'SECRET');",
		"INSERT INTO log (entry, password) VALUES ('INSERT INTO a (b) VALUES (1)', 'SECRET');",
		// What is wrong before a statement does not hide it.
		"INSERT INTO users (name, password) VALUES ('a', 'unclosed); INSERT INTO users (name, password) VALUES ('bob', 'SECRET');",
		"INSERT INTO users (name, password) VALUES (a, ; INSERT INTO users (name, password) VALUES ('bob', 'SECRET');",
		"CREATE TABLE users (id int -- INSERT INTO users (\n); INSERT INTO users (name, password) VALUES ('bob', 'SECRET');",
	} {
		in := strings.ReplaceAll(text, "SECRET", secret)
		got, found, err := s.Text(t.Context(), in)
		if want := strings.ReplaceAll(text, "SECRET", "[REDACTED:password-field]"); got != want || len(found) != strings.Count(text, "SECRET") || err != nil {
			t.Errorf("%d findings, %v in\n%s", len(found), err, got)
		}
	}
	for _, text := range []string{
		"INSERT INTO users (name, password) VALUES (?, ?)", "INSERT INTO users (name, password) VALUES ($1, $2)",
		"INSERT INTO users (name, password) VALUES ('%s', '%s')", "INSERT INTO users (name, password) VALUES (:name, :password)",
		"INSERT INTO users (name, password) VALUES ('${name}', '${password}')",
		"INSERT INTO users (name, password) VALUES ('\" + name + \"', '\" + password + \"')",
		"INSERT INTO users (name, password_hash) VALUES (NEW.name, NEW.password)",
		"INSERT INTO users (name, password) SELECT name, pwd FROM old_users;",
		"INSERT INTO t (key, value) VALUES ('token_limit', '4000'), ('password_policy', 'strict')",
		"INSERT INTO t (id, primary_key, foreign_key) VALUES (1, 'orders_pkey', 'orders_customer_fkey')",
		"INSERT INTO users (password, name) VALUES (1);", "copy 2 files (to the password directory)",
	} {
		if got, found, err := s.Text(t.Context(), text); got != text || len(found) > 0 || err != nil {
			t.Errorf("%d findings, %v in\n%s", len(found), err, got)
		}
	}
}

// TestStatementsCostLittle: no row of beginnings and ends of statements, strings and comments is read again for each
// statement in it, which takes hundreds of checks.
func TestStatementsCostLittle(t *testing.T) {
	const most = 450_000
	s := newScrubber(t, Options{})
	beginnings := []string{
		"INSERT INTO t (key,a) VALUES ", "INSERT INTO t VALUES ", "CREATE TABLE t (key,a)", "COPY t (a,key) ", "COPY t (a,key)csv\n", "INSERT INTO t (key",
	}
	signs := []string{"(", ")", "'", "''", "\"", "`", "\\", "--", "\n", ",", ";", "a", "'b9c8d7',", "1\tx\n"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		row := beginnings[r.IntN(len(beginnings))]
		for range r.IntN(4) {
			row += signs[r.IntN(len(signs))]
		}
		if r.IntN(3) == 0 {
			row += beginnings[r.IntN(len(beginnings))]
		}
		x := s.begin(context.Background())
		if _, _, err := x.examine(strings.Repeat(row, 1<<14/len(row))); err != nil {
			t.Fatal(err)
		}
		if x.limit.work > most {
			t.Errorf("16 KB of %q: %d steps, want at most %d", row, x.limit.work, most)
		}
		x.end()
	}
}
