//! The verbs: arguments, tables, messages, exit codes.
