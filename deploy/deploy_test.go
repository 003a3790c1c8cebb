// Package deploy has no code: its tests check the packages of a release. It is a module of its own,
// so that the gateway does not depend on Helm and Kubernetes.
package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/registry/pkg/api/v0"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

var binary string // foldgate

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "foldgate-deploy-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "foldgate")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-X github.com/foldgate/foldgate/internal/version.linked=v1.2.3", "-o", binary, "./cmd/foldgate")
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("go build: %v\n%s", err, out))
		}
		return m.Run()
	}())
}

// output runs a command, and returns what it prints.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// need skips a test without a program. FOLDGATE_RELEASE_CHECK, which make release-check sets, makes it fail.
func need(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	if os.Getenv("FOLDGATE_RELEASE_CHECK") != "" {
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
}

// kinds are the types that a manifest is decoded into, strictly.
var kinds = map[string]func() any{
	"v1/Secret":                               func() any { return new(core.Secret) },
	"v1/ConfigMap":                            func() any { return new(core.ConfigMap) },
	"v1/Service":                              func() any { return new(core.Service) },
	"v1/ServiceAccount":                       func() any { return new(core.ServiceAccount) },
	"apps/v1/StatefulSet":                     func() any { return new(apps.StatefulSet) },
	"apps/v1/Deployment":                      func() any { return new(apps.Deployment) },
	"policy/v1/PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1/NetworkPolicy":      func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1/ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
}

// render returns the manifests of the chart by kind and name.
func render(values map[string]any) (map[string]any, error) {
	chart, err := loader.Load("helm/foldgate")
	if err != nil {
		return nil, err
	}
	top, err := util.ToRenderValues(chart, values, common.ReleaseOptions{Name: "gate", Namespace: "agents", IsInstall: true, Revision: 1}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, top)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") {
			if !strings.Contains(text, "/mcp") {
				return nil, fmt.Errorf("%s: %s", name, text)
			}
			continue
		}
		for _, doc := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
			if strings.TrimSpace(doc) == "" {
				continue
			}
			var head struct {
				APIVersion, Kind string
				Metadata         struct{ Name string }
			}
			if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, doc)
			}
			make, known := kinds[head.APIVersion+"/"+head.Kind]
			if !known {
				return nil, fmt.Errorf("%s: no type for %s %s", name, head.APIVersion, head.Kind)
			}
			object := make()
			if err := yaml.UnmarshalStrict([]byte(doc), object, yaml.DisallowUnknownFields); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, doc)
			}
			key := head.Kind + " " + head.Metadata.Name
			if out[key] != nil || len(head.Metadata.Name) > 63 {
				return nil, fmt.Errorf("%s: %s is there twice, or its name is too long", name, key)
			}
			out[key] = object
		}
	}
	return out, nil
}

func chartValues(t *testing.T, file string) (values map[string]any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = yaml.UnmarshalStrict(data, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func TestChart(t *testing.T) {
	files, err := filepath.Glob("helm/testdata/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			values := chartValues(t, file)
			for _, m := range lint.RunAll("helm/foldgate", values, "agents").Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
			got, err := render(values)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"ConfigMap gate-foldgate", "NetworkPolicy gate-foldgate", "PodDisruptionBudget gate-foldgate", "Service gate-foldgate", "Service gate-foldgate-pods", "ServiceAccount gate-foldgate", "StatefulSet gate-foldgate"}
			switch filepath.Base(file) {
			case "trial.yaml":
				want = append(want, "Deployment gate-foldgate-redis", "NetworkPolicy gate-foldgate-redis", "Secret gate-foldgate-replicas", "Service gate-foldgate-redis")
			case "whole.yaml":
				want = append(want, "ServiceMonitor gate-foldgate")
			}
			slices.Sort(want)
			if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
				t.Errorf("manifests %q, want %q", have, want)
			}
			set := got["StatefulSet gate-foldgate"].(*apps.StatefulSet)
			checkPod(t, set.Spec.Template)
			if d, ok := got["Deployment gate-foldgate-redis"].(*apps.Deployment); ok {
				checkPod(t, d.Spec.Template)
			}
			if c := set.Spec.VolumeClaimTemplates; len(c) != 1 || c[0].Spec.Resources.Requests.Storage().IsZero() {
				t.Errorf("volume claims %v", c)
			}
			pod := set.Spec.Template.Spec.Containers[0]
			if pod.LivenessProbe == nil || pod.ReadinessProbe == nil || pod.StartupProbe == nil || pod.Lifecycle.PreStop.Sleep.Seconds < 1 {
				t.Errorf("probes %v %v %v", pod.LivenessProbe, pod.ReadinessProbe, pod.StartupProbe)
			}
			if hosts, _ := values["config"].(map[string]any)["allowed_hosts"].([]any); len(hosts) > 0 {
				h := pod.ReadinessProbe.HTTPGet
				if len(h.HTTPHeaders) != 1 || h.HTTPHeaders[0].Value != hosts[0] || h.Scheme != "HTTPS" {
					t.Errorf("probe %+v does not name %v over HTTPS", h, hosts[0])
				}
			}
			for _, k := range []string{"Service gate-foldgate", "Service gate-foldgate-pods"} {
				selects(t, k, got[k].(*core.Service).Spec.Selector, set.Spec.Template.Labels)
			}
			selects(t, "PodDisruptionBudget", got["PodDisruptionBudget gate-foldgate"].(*policy.PodDisruptionBudget).Spec.Selector.MatchLabels, set.Spec.Template.Labels)
			selects(t, "NetworkPolicy", got["NetworkPolicy gate-foldgate"].(*networking.NetworkPolicy).Spec.PodSelector.MatchLabels, set.Spec.Template.Labels)
			if m, ok := got["ServiceMonitor gate-foldgate"].(*monitoring.ServiceMonitor); ok {
				selects(t, "ServiceMonitor", m.Spec.Selector.MatchLabels, got["Service gate-foldgate-pods"].(*core.Service).Labels)
			}
			checkConfig(t, got["ConfigMap gate-foldgate"].(*core.ConfigMap).Data["foldgate.yaml"])
		})
	}
}

// selects checks that a selector selects what has these labels.
func selects(t *testing.T, what string, selector, labels map[string]string) {
	t.Helper()
	if len(selector) == 0 {
		t.Errorf("%s selects everything", what)
	}
	for k, v := range selector {
		if labels[k] != v {
			t.Errorf("%s selects %s=%s, the labels are %v", what, k, v, labels)
		}
	}
}

// checkPod checks what the restricted Pod Security Standard asks for, and a read-only root.
func checkPod(t *testing.T, pod core.PodTemplateSpec) {
	t.Helper()
	s := pod.Spec.SecurityContext
	if !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("pod: %+v", s)
	}
	for _, c := range pod.Spec.Containers {
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("container %s: %+v, %+v", c.Name, s, c.Resources)
		}
	}
}

// checkConfig has foldgate read the configuration that a pod gets. Stand-ins take the place of what
// the pod has: its volumes, and an issuer and a store on the network.
func checkConfig(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	for _, s := range [][2]string{{"/var/lib/foldgate", dir}, {"/etc/foldgate-tls", dir}} {
		text = strings.ReplaceAll(text, s[0], s[1])
	}
	file := filepath.Join(dir, "foldgate.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, dir+"/tls.crt") {
		output(t, dir, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=gate.example.com", "-keyout", "tls.key", "-out", "tls.crt")
	}
	cmd := exec.CommandContext(t.Context(), binary, "check", "--config", file)
	cmd.Env = append(os.Environ(), "FOLDGATE_STORE_URL=redis://127.0.0.1:1/0", "POD_IP="+map[bool]string{true: "::1", false: "127.0.0.1"}[strings.Contains(text, "[${POD_IP}]")], "FOLDGATE_REPLICAS_KEY="+strings.Repeat("k", 48))
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == 2 || err != nil && !regexp.MustCompile(`127\.0\.0\.1:1\b|login\.example\.com`).Match(out) {
		t.Errorf("foldgate check: %v\n%s\n%s", err, out, text)
	}
}

func TestChartRefuses(t *testing.T) {
	for values, want := range map[string]string{
		`{}`: "config needs principals or auth",
		`{replicas: 2, config: {principals: {a: {token: x}}}}`:                                    "more than one needs redis",
		`{config: {auth: {issuers: {}}}, redis: {existing: {secret: s}, trial: {enabled: true}}}`: "either existing or trial",
	} {
		var v map[string]any
		if err := yaml.Unmarshal([]byte(values), &v); err != nil {
			t.Fatal(err)
		}
		if _, err := render(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}

// A key that is not in values.yaml is refused, at each place: Helm alone would pass over it.
func TestChartRefusesUnknownKeys(t *testing.T) {
	free := []string{"config", "resources"} // as foldgate and Kubernetes have them
	refused := 0
	var try func(at map[string]any, path string)
	values := chartValues(t, "helm/foldgate/values.yaml")
	values["config"] = map[string]any{"principals": map[string]any{"a": map[string]any{"token": "x"}}}
	try = func(at map[string]any, path string) {
		at["typo"] = "x"
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), "typo") {
			t.Errorf("%stypo: %v", path, err)
		} else {
			refused++
		}
		delete(at, "typo")
		for key, value := range at {
			if below, ok := value.(map[string]any); ok && len(below) > 0 && !slices.Contains(free, path+key) {
				try(below, path+key+".")
			}
		}
	}
	try(values, "")
	if _, err := render(values); err != nil || refused < 10 {
		t.Errorf("%d refused; without a typo: %v", refused, err)
	}
}

func TestUnit(t *testing.T) {
	need(t, "systemd-analyze")
	unit, err := os.ReadFile("systemd/foldgate.service")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "foldgate.service")
	if err := os.WriteFile(file, bytes.ReplaceAll(unit, []byte("/usr/bin/foldgate"), []byte(binary)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := output(t, "", "systemd-analyze", "verify", file); strings.Contains(out, "foldgate.service") {
		t.Error(out)
	}
	checkConfigFile(t, "systemd/foldgate.yaml")
	checkConfigFile(t, "image/foldgate.yaml")
}

func checkConfigFile(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	checkConfig(t, string(text))
}

func TestNPM(t *testing.T) {
	need(t, "npm")
	dir := t.TempDir()
	cpu := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if cpu == "" {
		cpu = runtime.GOARCH
	}
	here := runtime.GOOS + "-" + cpu
	files := strings.Fields(output(t, "npm", "node", "pack.mjs", "1.2.3", dir, here+"="+binary))
	if len(files) != 2 {
		t.Fatal(files)
	}
	app := filepath.Join(dir, "app")
	if err := os.Mkdir(app, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, app, "npm", append([]string{"install", "--offline", "--no-audit", "--no-fund", "--loglevel=error"}, files...)...)
	wrapper := filepath.Join(app, "node_modules", ".bin", "foldgate")
	if got, want := output(t, app, wrapper, "--version"), "foldgate v1.2.3 "; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	cmd := exec.CommandContext(t.Context(), wrapper, "run")
	cmd.Dir, cmd.Env = app, append(os.Environ(), "FOLDGATE_CONFIG=", "XDG_CONFIG_HOME="+dir)
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n")
	if out, err := cmd.Output(); err != nil || !bytes.Contains(out, []byte(`"serverInfo"`)) {
		t.Errorf("over stdio: %v, %s", err, out)
	}
	refused := exec.CommandContext(t.Context(), wrapper, "no-such-command")
	if _ = refused.Run(); refused.ProcessState.ExitCode() != 2 {
		t.Errorf("exit code %d, want that of foldgate: 2", refused.ProcessState.ExitCode())
	}
	if err := os.RemoveAll(filepath.Join(app, "node_modules", "@foldgate")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), wrapper, "--version").CombinedOutput(); err == nil || !bytes.Contains(out, []byte("@foldgate/"+here+" is not installed")) {
		t.Errorf("without the platform's package: %v, %s", err, out)
	}
}

func TestServerJSON(t *testing.T) {
	data, err := os.ReadFile("mcp/server.json")
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var server v0.ServerJSON
	if err := dec.Decode(&server); err != nil {
		t.Fatal(err)
	}
	module := strings.TrimSpace(output(t, "", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/modelcontextprotocol/registry"))
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(module, "internal/validators/schemas/2025-12-11.json"))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Error(err)
	}
	var npm struct {
		Name    string
		MCPName string `json:"mcpName"`
	}
	manifest, err := os.ReadFile("npm/foldgate/package.json")
	if err == nil {
		err = json.Unmarshal(manifest, &npm)
	}
	if err != nil || npm.MCPName != server.Name || npm.Name != server.Packages[0].Identifier {
		t.Errorf("npm says %+v, server.json %s %s: %v", npm, server.Name, server.Packages[0].Identifier, err)
	}
	for _, file := range []string{"image/Dockerfile", "image/Dockerfile.node"} {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), `io.modelcontextprotocol.server.name="`+server.Name+`"`) {
			t.Errorf("%s lacks the name %s: %v", file, server.Name, err)
		}
	}
}
