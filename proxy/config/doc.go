// Package config is foldgate's configuration file: its keys, their defaults,
// loading and validation. It knows no gateway and opens no connection.
//
//	c, err := config.Find("") // ./foldgate.yaml, or the defaults
//
// # Adding a key
//
//  1. Add a field with a yaml tag and a comment to its struct (config.go).
//  2. If the zero value is not the default, set the default in [Default].
//  3. Check the value in [Config.Validate] (validate.go). The fault names the key and the
//     remedy, never a value that may be secret.
//  4. Show the key with its default in config.example.yaml. A test compares the file with the
//     types and with [Default].
//
// The gateway then reads the field. There is nothing to register: loading finds the field by
// its tag, expands ${NAME} in it, and refuses keys that no field has.
package config
