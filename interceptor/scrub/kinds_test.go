package scrub

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const (
	alnum = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	hexa  = "0123456789abcdef"
)

// TestKindsOfSecrets: each kind is found in its usual place, and what is one character short, or has
// a word or a variable in its place, stays. With -v it prints the table of docs/security.md.
func TestKindsOfSecrets(t *testing.T) {
	s := newScrubber(t, Options{})
	sets := map[byte]string{'a': alnum, 'h': hexa, 'l': "abcdefghijklmnopqrstuvwxyz0123456789", 'u': "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 'b': "abcdefghijklmnopqrstuvwxyz234567"}
	tests := []struct {
		rule, in string
		n        int    // characters of the secret that are random
		set      byte   //
		parts    string // the secret: # stands for the random characters
		near     string // what stands in its place and stays; "" is a secret of half the length
	}{
		{"ai-service-token", "SECRET", 95, 'a', "sk-ant-" + "oat01-#", ""},
		{"ai-service-token", "SECRET", 95, 'a', "sk-ant-" + "ort01-#", ""},
		{"ai-service-token", "SECRET", 120, 'a', "sk-" + "proj-#", "sk-proj-config"},
		{"ai-service-token", "SECRET", 64, 'h', "sk-" + "or-v1-#", ""},
		{"ai-service-token", "SECRET", 32, 'h', "sk-" + "#", ""},
		{"ai-service-token", "SECRET", 52, 'a', "gsk" + "_#", ""},
		{"ai-service-token", "SECRET", 80, 'a', "xai" + "-#", ""},
		{"ai-service-token", "SECRET", 37, 'a', "r8" + "_#", ""},
		{"ai-service-token", "SECRET", 12, 'h', "sk-" + "lf-0b8d1f7e-52f3-4b1c-9f7a-#", ""},
		{"ai-service-token", "SECRET", 32, 'h', "lsv2" + "_pt_#_0123456789", ""},
		{"ai-service-token", "SECRET", 63, 'a', "pcsk" + "_5fXyZ_#", ""},
		{"ai-service-token", "SECRET", 32, 'a', "tvly" + "-dev-#", ""},
		{"ai-service-token", "SECRET", 32, 'h', "fc" + "-#", ""},
		{"ai-service-token", "SECRET", 48, 'h', "sk" + "_#", "sk_buff_head"},
		{"ai-service-token", "SECRET", 43, 'a', "phx" + "_#", ""},
		{"cloud-service-token", "SECRET", 27, 'a', "dckr" + "_pat_#", ""},
		{"cloud-service-token", "SECRET", 32, 'a', "dckr" + "_oat_#", ""},
		{"cloud-service-token", "SECRET", 24, 'a', "hvs" + ".#", "hvs.Client"},
		{"azure-devops-token", "SECRET", 76, 'a', "#" + "AZDO1x2y", ""},
		{"cloud-service-token", "SECRET", 28, 'a', "GOC" + "SPX-#", ""},
		{"cloud-service-token", "SECRET", 60, 'a', "1/" + "/0#", ""},
		{"cloud-service-token", "SECRET", 300, 'a', "0.A" + "Xca#", "0.AXca"},
		{"cloud-service-token", "SECRET", 48, 'a', "cfut" + "_#", ""},
		{"cloud-service-token", "SECRET", 40, 'h', "sbp" + "_#", ""},
		{"cloud-service-token", "SECRET", 31, 'a', "sb" + "_secret_#", ""},
		{"cloud-service-token", "SECRET", 36, 'a', "vcp" + "_#", ""},
		{"cloud-service-token", "SECRET", 36, 'a', "nfp" + "_#", ""},
		{"cloud-service-token", "SECRET", 28, 'a', "rnd" + "_#", ""},
		{"cloud-service-token", "SECRET", 32, 'a', "AT" + "BB#", ""},
		{"cloud-service-token", "SECRET", 32, 'a', "ci" + "o#", ""},
		{"cloud-service-token", "SECRET", 43, 'l', "oy" + "2#", ""},
		{"cloud-service-token", "SECRET", 27, 'u', "NR" + "AK-#", ""},
		{"app-service-token", "SECRET", 40, 'a', "figd" + "_#", ""},
		{"app-service-token", "SECRET", 43, 'a', "secret" + "_#", ""},
		{"app-service-token", "SECRET", 64, 'h', "pat" + "AbCdEfGhIjKl12.#", ""},
		{"mailchimp-key", "SECRET", 32, 'h', "#-us" + "12", ""},
		{"app-service-token", "SECRET", 32, 'a', "wh" + "sec_#", ""},
		{"app-service-token", "SECRET", 80, 'a', "xo" + "xd-#", ""},
		{"app-service-token", "SECRET", 150, 'a', "EA" + "A#", ""},
		{"app-service-token", "SECRET", 50, 'a', strings.Repeat("A", 22) + "#%3D" + "abcdefgh1234567890ABCDEFGH", ""},
		{"app-service-token", "SECRET", 32, 'h', "access" + "_token$production$a1b2c3d4e5f6g7h8$#", ""},
		{"named-service-token", "AZURE_DEVOPS_EXT_PAT=SECRET", 52, 'b', "#", ""},
		{"named-service-token", "TWILIO_AUTH_TOKEN=SECRET", 32, 'h', "#", "$TWILIO_AUTH_TOKEN"},
		{"named-service-token", "VERCEL_TOKEN: SECRET", 24, 'a', "#", "vercel-token"},
		{"named-service-token", `{"private_key_id": "SECRET"}`, 40, 'h', "#", ""},
		{"named-service-token", "kubeadm join 10.0.0.1:6443 --token SECRET --discovery", 16, 'l', "abc123.#", "abc123.d"},
		{"named-service-token", "token: SECRET", 16, 'l', "abcdef.#", "abcdef.value"},
		{"named-service-token", "|  SecretAccessKey |  SECRET  |", 38, 'a', "/+#", "none"},
		{"named-service-token", "aws_secret_access_key = SECRET", 38, 'a', "/+#", "$AWS_SECRET_ACCESS_KEY"},
		{"named-service-token", `"awsSecretAccessKey": "SECRET"`, 39, 'a', "+#", "none"},
		{"named-service-token", "AccountName=a;AccountKey=SECRET;EndpointSuffix=x", 85, 'a', "+#==", "<key>"},
		{"named-service-token", "SharedAccessKey=SECRET", 42, 'a', "/#=", "<key>"},
		{"url-token", "https://x.blob.core.windows.net/a?sv=2024-01-01&se=2026&sig=SECRET", 43, 'a', "#%3D", "<signature>"},
		{"url-token", "https://api.example.com/v1?access_token=SECRET&x=1", 32, 'a', "#", "your_access_token_1"},
		{"url-token", "https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature=SECRET", 64, 'h', "#", "{signature}"},
		{"url-token", "https://discord.com/api/webhooks/123456789012345678/SECRET", 68, 'a', "#", "token"},
		{"url-token", "https://api.telegram.org/botSECRET/getMe", 35, 'a', "1234567890:#", "<token>"},
		{"url-token", "https://SECRET@o1.ingest.sentry.io/42", 32, 'h', "#", "public"},
		{"url-token", "otpauth://totp/x:bob?secret=SECRET&issuer=x", 32, 'u', "#", "${SECRET}"},
		{"jwe", "SECRET", 60, 'a', "eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIn0..MDEyMzQ1Njc4OWFi.#.MDEyMzQ1Njc4OWFiY2RlZg", "eyJhbGciOiJkaXIi"},
		{"database-password", "jdbc:postgresql://db:5432/app?user=app&password=SECRET", 14, 'a', "#", "${PASSWORD}"},
		{"database-password", "jdbc:oracle:thin:app/SECRET@db:1521:x", 14, 'a', "#", "<password>"},
		{"database-password", "host=db user=app password=SECRET dbname=x", 14, 'a', "#", "$PASSWORD"},
		{"database-password", "password=SECRET host=db", 14, 'a', "#", "password"},
		{"database-password", "Server=db;User Id=sa;Password=SECRET", 14, 'a', "#", "{password}"},
		{"database-password", "db.internal:5432:app:bob:SECRET\n", 14, 'a', "#", "password"},
		{"database-password", "postgres://app:SECRET@db/app", 10, 'a', "ab/#", "password"},
		{"dsn-password", "app:SECRET@tcp(db:3306)/app?parseTime=true", 10, 'a', "a/#", "%s"},
		{"dsn-password", "dsn: app:SECRET@unix(/run/mysqld/mysqld.sock)/app", 10, 'a', "#!", "${DB_PASSWORD}"},
		{"dsn-password", "mysql://app:SECRET@tcp(db:3306)/app", 10, 'a', "#", "%v"},
		{"dsn-password", "dsn:example_app:SECRET@tcp(db:3306)/app", 10, 'a', "#", "example"},
		{"dsn-password", "app:SECRET@tcp(db:3306)/app", 10, 'a', "/#", "/{password}"},
		{"password-attribute", "Server=db;Password=SECRET;", 14, 'a', "#", "{password}"},
		{"password-variable", "PGPASSWORD=SECRET psql", 14, 'a', "#", "$PASSWORD"},
		{"password-variable", "export DB_PASSWORD=SECRET", 14, 'a', "#", "${OTHER_PASSWORD}"},
		{"password-variable", "ADMIN_PASSWD='SECRET'", 14, 'a', "#", "changeme"},
		{"password-variable", "KEY_PASSPHRASE=\"SECRET\"", 14, 'a', "#", "/run/secrets/phrase1"},
		{"password-in-code", `password = "SECRET"`, 9, 'a', "#!x#", "^[a-z0-9!]{8,}$"},
		{"password-in-code", "'password': 'SECRET',", 9, 'a', "#@", "%(password1)s"},
		{"password-in-code", "'db_password' => 'SECRET',", 9, 'a', "#&", "${DB_PASSWORD1}"},
		{"password-in-code", `var adminPwd := "SECRET"`, 9, 'a', "#$#", "https://a/?b=1&c"},
		{"password-in-code", `c.setPassword("SECRET")`, 12, 'a', "#", "${PASSWORD1}"},
		{"password-in-code", "ALTER USER joe WITH PASSWORD 'SECRET'", 12, 'a', "#", "<password1>"},
		{"password-in-code", "**Password:** SECRET", 12, 'a', "#", "$PASSWORD1"},
		{"password-in-words", "the password is SECRET", 12, 'a', "#!", "$PASSWORD1"},
		{"password-in-language", "Passwort: SECRET", 12, 'a', "#", "$PASSWORT1"},
		{"password-member", "smtpPass: 'SECRET'", 12, 'a', "#!", "${PASS1}"},
		{"php-constant", "define('DB_PASSWORD', 'SECRET');", 12, 'a', "#", "your-password1"},
		{"php-constant", "define('NONCE_SALT', 'SECRET');", 40, 'a', "#|a b%", "put your unique phrase here"},
		{"generic-secret", `{"client_secret": "SECRET"}`, 12, 'a', "#!B", "{client#Secret1}"},
		{"password-of-service", "SMTP_PASS=\"SECRET\"", 12, 'a', "#", "${SMTP_PASS1}"},
		{"password-of-service", "db_pass: SECRET", 12, 'a', "#", "$DB_PASS1"},
		{"password-of-service", `{"mail.pass": "SECRET"}`, 12, 'a', "#!", "getenv(PASS_1)"},
		{"netrc", "default login bob password SECRET", 12, 'a', "#", "prompt"},
		{"password-field", `{"db_password": "SECRET"}`, 14, 'a', "#", "isPassword"},
		{"command-password", "mysql -u root -pSECRET app", 12, 'a', "#", "$PASSWORD"},
		{"command-password", "mysqldump -h db -pSECRET app", 12, 'a', "#", "assword"},
		{"command-password", "mysql -u root -p'SECRET' app", 12, 'a', "#", "$PASSWORD"},
		{"command-password", "mysqladmin -p\"SECRET\" ping", 12, 'a', "#", "$PASSWORD"},
		{"command-password", "mysql -h db --password 'SECRET' app", 12, 'a', "#", "<password>"},
		{"command-password", "mysql --password=SECRET", 12, 'a', "#", "password"},
		{"command-password", "mariadb -uroot -pSECRET", 12, 'a', "#", "assword"},
		{"command-password", "mariadb-dump -h db -p'SECRET' app", 12, 'a', "#", "x"},
		{"command-password", "sshpass -p SECRET ssh bob@x", 12, 'a', "#", "$PASSWORD"},
		{"command-password", "sshpass -p 'SECRET' ssh bob@x", 12, 'a', "#", "<password>"},
		{"command-password", "redis-cli -h x -a SECRET ping", 12, 'a', "#", "$PASSWORD"},
		{"command-password", "docker login -u bob -p SECRET r.example.com", 12, 'a', "#", "$PASSWORD"},
		{"command-password", "htpasswd -bc file bob SECRET", 12, 'a', "#", "password"},
		{"command-password", "curl -u bob:SECRET https://x", 12, 'a', "#!x", "$PASSWORD"},
		{"command-password", "curl -s --user 'bob:SECRET' https://x", 12, 'a', "#", "{password}"},
		{"command-password", "h1 ansible_ssh_pass=SECRET", 12, 'a', "#", "{{vault}}"},
		{"command-password", `["sshpass","-p","SECRET","ssh","h"]`, 12, 'a', "#", "$PASSWORD"},
		{"command-password", `{"Cmd": ["mysql", "-u", "root", "-pSECRET"]}`, 12, 'a', "#", "assword"},
		{"command-password", `["redis-cli", "-a", "SECRET"]`, 12, 'a', "#", "$PASSWORD"},
		{"command-password", `["curl","-u","bob:SECRET","https://x"]`, 12, 'a', "#", "$PASSWORD"},
		{"command-password", `curl --proxy-user bob:SECRET https://x`, 12, 'a', "#", "$PASSWORD"},
		{"command-password", `curl -b 'sid=0123SECRET' https://x`, 12, 'a', "#", "$SID"},
		{"password-option", `ldapsearch -x -D cn=admin,dc=x -w SECRET -b dc=x`, 12, 'a', "#", "password"},
		{"password-option", `zip -r -P 'SECRET' a.zip dir`, 12, 'a', "#", "$PASSWORD"},
		{"password-option", "unzip -P SECRET a.zip", 12, 'a', "#", "$PASSWORD1"},
		{"password-option", `7z a -pSECRET a.7z dir`, 12, 'a', "#", "a"},
		{"password-option", `sqlcmd -S db1 -U sa -P SECRET -Q x`, 12, 'a', "#", "<password>"},
		{"password-option", `ipmitool -I lanplus -H h1 -U admin -P SECRET power on`, 12, 'a', "#", "password"},
		{"password-option", `ssh-keygen -t rsa -N "SECRET" -f k1`, 12, 'a', "#", "$PASSPHRASE1"},
		{"password-option", `mongodump --host h1 -u admin -p SECRET`, 12, 'a', "#", "27017:27017"},
		{"password-option", `["mongosh", "-u", "admin", "-p", "SECRET"]`, 12, 'a', "#", "%PASSWORD1%"},
		{"key-store-password", `openssl rsa -in k1.pem -passin pass:SECRET`, 12, 'a', "#", "password1"},
		{"key-store-password", `openssl enc -aes-256-cbc -pass 'pass:SECRET'`, 12, 'a', "#", "example1"},
		{"key-store-password", `keytool -list -keystore k1 -storepass SECRET`, 12, 'a', "#", "changeme1"},
		{"key-store-password", `redis-cli -h h1 --pass SECRET ping`, 12, 'a', "#", "$PASSWORD1"},
		{"key-store-password", "requirepass SECRET\n", 12, 'a', "#", "your-password1"},
		{"key-store-password", `command: ["redis-server", "--requirepass", "SECRET"]`, 12, 'a', "#", "${PASSWORD1}"},
		{"remote-password", `smbclient //h1/s -U bob%SECRET`, 12, 'a', "#", "password1"},
		{"remote-password", `plink -ssh -pw SECRET bob@h1`, 12, 'a', "#", "$PASSWORD1"},
		{"remote-password", `xfreerdp /u:bob /p:SECRET /v:h1`, 12, 'a', "#", "${PASSWORD1}"},
		{"remote-password", `lftp -u bob,SECRET ftp://h1`, 12, 'a', "#", "<password1>"},
		{"remote-password", `sqlplus scott/SECRET@db1`, 12, 'a', "#", "{password1}"},
		{"remote-password", `http -v -a bob:SECRET GET https://x`, 12, 'a', "#", "password1"},
		{"password-input", `echo 'root:SECRET' | chpasswd`, 12, 'a', "#", "$PASSWORD1"},
		{"password-input", `chpasswd <<< "bob:SECRET"`, 12, 'a', "#", "$PASSWORD1"},
		{"password-input", "chpasswd <<EOF\nroot:SECRET\nEOF", 12, 'a', "#", "$PASSWORD1"},
		{"password-input", `echo SECRET | sudo -S true`, 12, 'a', "#", "$PASSWORD1"},
		{"password-input", `echo -n "SECRET" | docker login -u bob --password-stdin`, 12, 'a', "#", "$PASSWORD1"},
		{"password-input", `rabbitmqctl add_user bob SECRET`, 12, 'a', "#", "changeme1"},
		{"password-input", `net user bob SECRET /add`, 12, 'a', "#", "%PASSWORD1%"},
		{"password-input", `mysqladmin -u root password SECRET`, 12, 'a', "#", "new-password1"},
		{"password-input", `ConvertTo-SecureString "SECRET" -AsPlainText -Force`, 12, 'a', "#", "$env:PASSWORD1"},
		{"password-statement", `CREATE USER 'bob'@'%' IDENTIFIED BY 'SECRET';`, 12, 'a', "#", "your_password1"},
		{"password-statement", `SET PASSWORD FOR 'bob'@'%' = PASSWORD('SECRET');`, 12, 'a', "#", "${PASSWORD1}"},
		{"password-statement", `requests.get(u, auth=('bob', 'SECRET'))`, 12, 'a', "#", "password1"},
		{"password-statement", `req.SetBasicAuth("bob", "SECRET")`, 12, 'a', "#", "$PASSWORD1"},
		{"cookie-fields", `{"name": "sid", "value": "SECRET", "domain": "x", "path": "/"}`, 24, 'a', "#", "dark-mode-of-the-page"},
		{"cookie-fields", `{"httpOnly":true,"name":"sid","path":"/","secure":true,"value":"SECRET"}`, 24, 'a', "#", "dark-mode-of-the-page"},
		{"cookie-fields", ".x.com\tTRUE\t/\tTRUE\t1999999999\tsid\tSECRET\n", 24, 'a', "#", "dark-mode-of-the-page"},
		{"cookie", `{"name":"Cookie","value":"a=b; SECRET"}`, 24, 'a', "sid=#", "sid=short1"},
		{"cookie", `[["Set-Cookie", "SECRET; Path=/"]]`, 24, 'a', "sid=#", "sid=short1"},
		{"authorization-header", `{"name":"authorization","value":"Basic SECRET"}`, 20, 'a', "#", "realm"},
		{"authorization-header", `req.Header.Set("Authorization", "Bearer SECRET")`, 20, 'a', "#", "some-token"},
		{"password-hash", "root:SECRET:19000:0:99999:7:::", 80, 'a', "$6$abcdefgh$#", "!"},
		{"password-hash", "root:SECRET:19000:0:99999:7:::", 60, 'a', "$y$j9T$abcdefgh$#", "*"},
		{"password-hash", "bob:SECRET\n", 22, 'a', "$apr1$abcdefgh$#", "$apr1$"},
		{"password-hash", "bob:SECRET\n", 53, 'a', "$2y$05$#", "x"},
		{"wifi-password", "network={\n\tpsk=\"SECRET\"\n}", 12, 'a', "#", "<passphrase>"},
		{"wifi-password", "WIFI:S:home;T:WPA;P:SECRET;;", 12, 'a', "#", "short"},
		{"django-secret-key", "SECRET_KEY = 'SECRET'", 50, 'a', "django-insecure-#", "change"},
		{"private-key-body", "SECRET", 400, 'a', "MII" + "EvQIBADANBgkqhkiG9w0BAQEFAASC#", "MIIDXTCCAkWgAwIBAgIJAKL0UG"},
		{"private-key-body", "SECRET", 300, 'a', "MII" + "CXQIBAAKBgQ#", "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A"},
		{"private-key-body", "SECRET", 96, 'a', "MIG" + "HAgEAMBMGByqGSM49AgEGCCqGSM49#", "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE"},
		{"private-key-body", "SECRET", 96, 'a', "MHc" + "CAQEEI#", "MHcCAQEEI"},
		{"private-key-body", "SECRET", 44, 'a', "MC4" + "CAQAwBQYDK2VwBCIEI#", "MCowBQYDK2VwAyEA"},
		{"private-key-body", "SECRET", 200, 'a', "b3Blbn" + "NzaC1rZXktdjEAFaLSE#", "AAAAB3NzaC1yc2EAAAADAQABAAABgQfaLSE"},
		{"private-key-body", "SECRET", 200, 'a', "b3Blbn" + "NzaC1rZXktdjEA#", "AAAAB3NzaC1yc2EAAAADAQABAAABgQ"},
		{"private-key-end", "SECRET\n-----END RSA PRIVATE" + " KEY-----", 64, 'a', "#", "and so on"},
		{"mnemonic-phrase", `"mnemonic": "SECRET"`, 0, 'a', "legal winner thank year wave sausage worth useful legal winner thank yellow", "the words that were chosen when you have made the wallet for your coins"},
		{"mnemonic-phrase", "seed phrase: SECRET.", 0, 'a', strings.Repeat("letter advice cage absurd amount doctor ", 3) + "letter advice", "plant them early from seed with care and water"},
		{"mnemonic-phrase", "MNEMONIC=\"SECRET\"", 0, 'a', "void come effort suffer camp survey warrior heavy shoot primary clutch crush open amazing screen patrol group space", "void come effort suffer"},
		{"putty-key", "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 1\nAAAA\nPrivate-Lines: 1SECRET", 44, 'a', "\n#", ","},
	}
	random := func(seed uint64, set string, n int) string {
		rnd := rand.New(rand.NewPCG(seed, 3))
		b := make([]byte, n)
		for i := range b {
			b[i] = set[rnd.IntN(len(set))]
		}
		if n >= 8 {
			copy(b[2:], "q7") // a digit and a letter that all sets have
			if set == hexa {
				copy(b[2:], "e7")
			}
			if set[0] == 'A' && len(set) == 32 {
				copy(b[2:], "Q7")
			}
		}
		return string(b)
	}
	const seeds = 8
	scores := map[string]*score{}
	defer func() { logScores(t, scores) }()
	for n := range seeds * len(tests) {
		i := n / seeds
		tt := tests[i]
		sc := scores[tt.rule]
		if sc == nil {
			sc = &score{}
			scores[tt.rule] = sc
		}
		if n%seeds == 0 {
			sc.kinds++
		}
		secret := strings.Replace(tt.parts, "#", random(uint64(n), sets[tt.set], tt.n), 1)
		places := []string{tt.in}
		if tt.in == "SECRET" {
			places = []string{"SECRET", "x = SECRET\n", `{"v":"SECRET"}`, "see (SECRET).", "<td>SECRET</td>", "a,SECRET,b"}
		}
		for _, place := range places {
			at := strings.LastIndex(place, "SECRET")
			put := func(secret string) string { return place[:at] + secret + place[at+len("SECRET"):] }
			in := put(secret)
			got, found, err := s.Text(context.Background(), in)
			sc.texts++
			if err != nil || strings.Contains(got, secret[len(secret)/2:]) || len(found) == 0 {
				t.Errorf("Text(%q) = %q, %v: the secret is still there", in, got, found)
			} else {
				sc.found++
			}
			own := false
			for _, h := range hitsOf(t, s, in) {
				own = own || h.rule.ID == tt.rule && strings.Contains(in[h.secret.Start:h.secret.End], secret)
			}
			if !own {
				t.Errorf("rule %s does not find %q in %q", tt.rule, secret, in)
			}
			near := tt.near
			if near == "" {
				near = strings.Replace(tt.parts, "#", random(uint64(n), sets[tt.set], tt.n/3), 1)
			}
			in = put(near)
			sc.near++
			for _, h := range hitsOf(t, s, in) {
				if h.rule.own {
					sc.redacted++
					t.Errorf("rule %s finds %q in %q, want nothing", h.rule.ID, in[h.secret.Start:h.secret.End], in)
					break
				}
			}
		}
	}
}

// TestUserOfDSN: only the password of a DSN is redacted, also in a URL.
func TestUserOfDSN(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, user := range []string{"app", "mysql://app"} {
		in := user + ":" + token(1, "", 14) + "@tcp(db:3306)/app"
		got, _, err := s.Text(context.Background(), in)
		if err != nil || !strings.HasPrefix(got, user+":[REDACTED:") || !strings.HasSuffix(got, "]@tcp(db:3306)/app") {
			t.Errorf("Text(%q) = %q, %v, want all but the password", in, got, err)
		}
	}
}

// A score counts texts with a secret of a rule, and texts with something like it.
type score struct{ kinds, texts, found, near, redacted int }

// logScores logs a table in Markdown.
func logScores(t *testing.T, scores map[string]*score) {
	var all score
	var b strings.Builder
	row := func(name string, s *score) {
		fmt.Fprintf(&b, "| %s | %d | %d | %.3f | %d | %.3f |\n", name, s.kinds, s.texts, float64(s.found)/float64(s.texts), s.near, float64(s.found)/float64(s.found+s.redacted))
	}
	for _, rule := range slices.Sorted(maps.Keys(scores)) {
		s := scores[rule]
		all = score{all.kinds + s.kinds, all.texts + s.texts, all.found + s.found, all.near + s.near, all.redacted + s.redacted}
		row("`"+rule+"`", s)
	}
	row("all", &all)
	t.Logf("\n| rule | kinds | texts | recall | look-alikes | precision |\n|---|---:|---:|---:|---:|---:|\n%s", &b)
}
